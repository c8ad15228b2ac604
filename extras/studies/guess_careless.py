r"""data/guess.py with games whose guesses ignore what the world says.

    python train_grpo.py config/grpo_world.py --dataset=extras/studies/guess_careless.py

Games won: start 24.6 %, policy 95.8, 86.3, 88.7 % (greedy 100, 93.3, 93.3 %); seeds 1, 2, 3. Where
greedy decoding loses, the first guess is not the middle letter, so one of the fifteen is out of
reach.
"""
from data import guess
from data.guess import reply, verify        # noqa: F401


def texts():
    return guess.texts(careless=True)
