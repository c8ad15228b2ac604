"""A file of prompts and answers to try: hours and minutes as minutes, such as 3h05m= and 185.

    python -m extras.tasks 1000 > mine.jsonl        # 1,000 lines to learn from, 200 held out
    python train_grpo.py config/grpo_pairs.py --dataset=mine.jsonl
"""
import json
import random
import sys

if __name__ == '__main__':
    rng = random.Random(0)
    pairs = {}                                  # a prompt comes once
    while len(pairs) < int(sys.argv[1]) + 200:
        h, m = rng.randrange(24), rng.randrange(60)
        pairs[f'{h}h{m:02}m='] = str(60 * h + m)
    for i, (prompt, answer) in enumerate(pairs.items()):
        print(json.dumps({'prompt': prompt, 'answer': answer, 'held_out': i < 200}))
