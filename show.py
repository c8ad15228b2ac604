"""Completions to read: for the console, for sample.py, and for the page of a run. Skip this file at
first."""
import collections
import itertools
import math

TURNS = '.123456789abcdefghijklmnopqrstuvwxyz'

# sizes: k completions of each prompt | N texts of T tokens | M sampled tokens


def samples_of(r, columns, scores, logp=None):
    """Return the completions of a Rollout that have rows in its table, a dict each: 'prompt',
    'completion', 'scores' {name: number}, and 'pieces', a list for each token: its text; if it was
    sampled, its turn (0: from left to right); and, if logp (M, 2) is there, its log-probabilities
    before and after the step. They are nan for a token that no network has looked at."""
    turns = itertools.repeat(0) if r.turn is None else r.turn.tolist()
    numbers = itertools.repeat([]) if logp is None else logp.tolist()
    drawn = {}
    for text, place, turn, more in zip(r.text.tolist(), r.place.tolist(), turns, numbers):
        drawn[text, place] = [turn, *filter(math.isfinite, more)]
    tok = r.prompts.task.tok
    samples = []
    for n in r.text.unique().tolist():
        start = 0
        if r.turn is None:                      # from left to right: without the prompt
            start = int(r.prompts.start[n // r.k])
        pieces = [[tok.show([id]), *drawn.get((n, place), [])]
                  for place, id in enumerate(r.texts[n].tolist())
                  if place >= start and id != tok.pad]
        samples.append({
            'prompt': columns['prompt'][n],
            'completion': columns['completion'][n],
            'scores': {name: x.flatten()[n].item() for name, x in scores.items()},
            'pieces': pieces,
        })
    return samples


def group_to_show(r):
    """Return a Rollout of the first group that has an advantage, or of the first group."""
    group = r.text // r.k
    learns = r.has_advantage()
    chosen = group[learns] if learns.any() else group
    return r.select(group == chosen.sort().values[:1])      # no rows stay none


def print_group(samples, names, label=''):
    """Print the different completions of a prompt and those scores that have these names, the best
    first; of more than six the three best and the three worst. Below a text stand the turns in
    which its blanks were filled (a: 10), if there were several, or dots below what the policy
    wrote, if a world wrote the rest."""
    count = collections.Counter()
    for sample in samples:
        turns = ''
        for text, *numbers in sample['pieces']:
            turn = TURNS[min(numbers[0], 35)] if numbers else ' '
            turns += turn * (len(repr(text)) - 2)       # on the screen \n is two characters
        scores = tuple(sample['scores'][name] for name in names)
        count[scores, sample['completion'], turns.rstrip()] += 1
    header = ''.join(f'{name:>11.10}' for name in names)
    print(f"{label:12}{header}   {samples[0]['prompt']!r}")
    rows = sorted(count, reverse=True)
    for row in rows[:3] + rows[3:][-3:]:
        scores, text, turns = row
        numbers = ''.join(f'{x:11.3f}' for x in scores)
        line = f'{count[row]:10} x{numbers}   '
        print(f'{line}{text!r}')
        if turns.strip('1 ') and set(turns) != {'.'}:
            print(f"{'':{len(line)}} {turns}")
