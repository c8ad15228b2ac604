r"""data/guess.py with games whose guesses ignore what the world says.

    python train_grpo.py config/grpo_guess.py --dataset=extras/studies/guess_careless.py \
        --max_iters=240 --entropy_coef=0.02

Games won: start 24.6 %, policy 75.4 % (greedy 100 %); seed 1. With the knobs of the config 44.6 %.
"""
from data import guess
from data.guess import reply, verify        # noqa: F401


def texts():
    return guess.texts(careless=True)
