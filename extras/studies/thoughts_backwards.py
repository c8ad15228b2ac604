"""data/thoughts.py with thoughts that are written from the last one to the first.

    python train_grpo.py config/grpo_order.py --dataset=extras/studies/thoughts_backwards.py

verify: start 35.9 %, policy 99.2, 99.2, 98.9 %; seeds 1, 2, 3; with --fill_order=left
--n_fill_steps=8 25.8, 23.8, 25.6 %.
"""
from data import cups, thoughts


def texts():
    return [[{name: backwards(text) for name, text in record.items()} for record in records]
            for records in thoughts.texts()]


def backwards(text):
    prompt, _, steps = text.partition('=')
    return f'{prompt}={steps[::-1]}'


def verify(text):
    return cups.verify(backwards(text))
