"""A run for people: completions as they are printed, and as samples.jsonl has them."""
import os

import torch

from run.machine import print0

KNOWN = ('prompt', 'completion', 'text', 'answer', 'ended', 'sampled', 'line', 'held_out')


def first_group(micro_step, advantages):
    """Return the first prompt of a micro-step whose completions teach something, or, if none do,
    the first prompt: the slice of the micro-step; the numbers of the prompt's sequences in it; and
    the Rollout as if only these had been sampled."""
    index, r = micro_step
    b = int(advantages[index].any(1).float().argmax())
    k = r.prompts.k
    chosen = torch.arange(len(r.sequences), device=r.pass_of.device) // k == b
    return index, range(b * k, b * k + k), r.only(chosen)


def samples_of(r, scores, rows=None, logp=()):
    """Return completions of a Rollout, a list of dicts: prompt, other columns of its record,
    completion, its scores {name: number} out of scores {name: (B, k)}, and its pieces, see below.
    rows: their numbers; None: all."""
    samples = []
    cases = r.cases()
    for n in rows or range(len(cases)):
        case = cases[n]
        completion, pieces = pieces_of(r, n, logp)
        samples.append({
            'prompt': case['prompt'],
            'columns': {name: case[name] for name in case if name not in KNOWN},
            'completion': completion,
            'scores': {name: number(values.flatten()[n]) for name, values in scores.items()},
            'pieces': pieces,
        })
    return samples


def number(value):
    """Return the number of a tensor; None of NaN, a missing value, which JSON lacks."""
    return None if value.isnan() else value.item()


def pieces_of(r, n, logp=()):
    """Return completion n, and its pieces. Given text is a string. A sampled token is a list: its
    text, its pass, from 1 (0: from left to right), and its log-probabilities in logp, (N, T) each.
    A character can need several tokens: the last one has it, the others have the text ''."""
    data = r.prompts.data
    start = int(r.prompts.blank[n // r.prompts.k].int().argmax()) if data.causal else 0
    # A reward gets a completion without special tokens; people see them.
    completion = data.tok.text_of(r.sequences[n, start:].tolist())
    pieces = ['']               # before and after each token there is given text, at first ''
    ids = []
    done = ''                                   # the text of these ids
    columns = [values[n, start:].tolist() for values in (r.sequences, r.pass_of, *logp)]
    for id, i, *numbers in zip(*columns):
        ids.append(id)
        text = os.path.commonprefix([completion, data.tok.decode(ids)])
        piece = text[len(done):]
        done = text
        if i < 0:
            pieces[-1] += piece
        else:
            pass_now = 0 if data.causal else i + 1
            pieces += [[piece, pass_now, *numbers], '']
    return completion, [piece for piece in pieces if piece]


def rows_of(samples):
    """Return the samples that differ in their scores, text or passes, the best first, with the
    'passes' of their letters, and how often they came, 'n'."""
    rows = {}
    for sample in samples:
        passes = letters_of_passes(sample['pieces'])
        scores = [(value is not None, value) for value in sample['scores'].values()]
        row = {**sample, 'passes': passes, 'n': 0}
        row = rows.setdefault((*scores, sample['completion'], passes), row)
        row['n'] += 1
    return [rows[key] for key in sorted(rows, reverse=True)]


def show_group(label, samples):
    """Print a group: its prompt, and below it its different completions, how often each came, and
    their scores, sorted by the first; of more than six the best and the worst. Below a completion
    of several passes stands the pass of each of its letters. In a world dots stand below what the
    policy wrote."""
    rows = rows_of(samples)
    del rows[3:-3]
    columns = ''.join(f' {name:>12.12}' for name in rows[0]['scores'])
    known = rows[0]['columns'] or ''
    print0(f"{label:9}{columns}   {rows[0]['prompt']!r} {known}".rstrip())
    for row in rows:
        columns = ''.join(f'{"none":>13}' if value is None else f' {value:12.3f}'
                          for value in row['scores'].values())
        print0(f"{row['n']:7} x{columns}   {row['completion']!r}")
        if max(row['passes'], default='') > '1' or '. ' in row['passes']:
            print0(' ' * (13 + len(columns)) + row['passes'].rstrip())


def letters_of_passes(pieces):
    """Return a line with the pass, from 1, of each letter of a completion: 1 to 9, then a to z;
    a dot from left to right; a space below given text."""
    line = ''
    for piece in pieces:
        if type(piece) is str:                  # it was given
            line += ' ' * len(piece)
        else:
            text, i, *_ = piece
            line += '.123456789abcdefghijklmnopqrstuvwxyz'[min(i, 35)] * len(text)
    return line
