r"""data/guess.py with 31 letters and five guesses.

    python train_grpo.py config/grpo_guess.py --dataset=extras/studies/guess_31.py \
        --eval_prompts=124 --max_iters=240 --entropy_coef=0.02

Games won: start 42.5 %, policy 83.5 % (greedy 96.8 %); seed 1. With the knobs of the config 59.3 %.
"""
from data import guess
from data.guess import reply, verify        # noqa: F401


def texts():
    return guess.texts('ABCDEabcdefghijklmnopqrstuvwxyz', 5)
