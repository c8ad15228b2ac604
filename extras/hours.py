"""Write a file of prompts and answers to try: hours and minutes as minutes, such as 3h05m= and 185.

    python -m extras.hours 1000 > mine.jsonl        # 1,000 lines to learn from, 200 held out
    python train_grpo.py config/grpo_pairs.py --dataset=mine.jsonl"""
import json
import random
import sys

if __name__ == '__main__':
    n = ''.join(sys.argv[1:])
    if not n.isdigit() or int(n) > 1240:
        sys.exit("expected how many lines to learn from, up to 1240: a day has 1440 minutes")
    rng = random.Random(0)
    pairs = {}                                  # a prompt comes once
    while len(pairs) < int(n) + 200:
        h = rng.randrange(24)
        m = rng.randrange(60)
        pairs[f'{h}h{m:02}m='] = str(60 * h + m)
    for i, (prompt, answer) in enumerate(pairs.items()):
        print(json.dumps({'prompt': prompt, 'answer': answer, 'held_out': i < 200}))
