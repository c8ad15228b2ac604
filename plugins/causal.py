"""Write from left to right what follows prompts, up to and including eos. If the task has a
reply(), it is a world, which says what stands behind a completion now. include() this in a
config.

(What is not imported here is of train_grpo.py; inner is the function that is replaced.)"""
import torch.nn.functional as F
from dataclasses import replace

from configurator import call_world
from model import distinct

blank_kind = 'answer'
max_new_tokens = 0          # write so many tokens at most; 0: to the end of the row, in which the
                            # longest answer fits behind the longest prompt


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times. Prompts have different lengths:

        1 2 + 3 = _ _ _ _       The first column that is written is the fifth, of the second text.
        1 + 2 = _ _ _ _ _       The first text keeps its own `=` there.
    """
    assert policy.causal, "this generator fills blanks: leave out plugins/causal.py"
    task = prompts.task
    world = globals().get('reply', task.reply)  # of a config file, or of the dataset's
    start = prompts.start[:, None]                                              # (B, 1)
    T = max(prompts.tokens.size(1), task.longest_prompt + max_new_tokens)
    task.check(T)
    tokens = F.pad(prompts.tokens, (0, T - prompts.tokens.size(1)), value=policy.pad_id)
    at = torch.arange(T, device=tokens.device)
    blank = (at >= start) & (at < start + (max_new_tokens or T))                # (B, T)
    prompts = replace(prompts, tokens=tokens, blank=blank)
    is_open = blank.repeat_interleave(k, 0)                                     # (N, T)
    sequences = tokens.masked_fill(at >= start, policy.pad_id).repeat_interleave(k, 0)
    # Texts of one record that are equal so far share a row of the cache.
    going = torch.arange(len(sequences), device=tokens.device)  # texts that go on, (G,)
    column = int(start.min())
    records = prompts.record.repeat_interleave(k)[:, None]
    # example: one text of each row, by its place in going | row: the row of each text, (G,)
    example, row = distinct(torch.cat((records, sequences[:, :column]), 1))
    inputs = F.pad(sequences[example, :column], (1, 0), value=policy.bos_id)
    cache, table, all_kept = {}, [], []
    while True:
        # Draw a token for each text that writes in this column.
        x = policy.trunk(inputs, cache)[:, -1]                                  # (rows, C)
        writes = is_open[going, column]         # in the others prompt or world have this column
        n = going[writes]
        ids, kept = sample(policy.logits(x)[row[writes]], 1, greedy)
        sequences[n, column] = ids[:, 0]
        table.append(torch.stack((n, torch.full_like(n, column), ids[:, 0])))
        all_kept.append(kept)
        column += 1
        is_open[n[ids[:, 0] == task.tok.eos], column:] = False
        # Which texts go on, which of them are still equal, and what does the world say? If the
        # first of four equal texts has ended, and the others have written b, c, b: going is 1 2 3,
        # row 0 0 0, next_row 0 1 0, and example is 0 1.
        goes_on = is_open[going, column:].any(1)
        going, row, writes = going[goes_on], row[goes_on], writes[goes_on]
        example, next_row = distinct(torch.stack((row, sequences[going, column - 1]), 1))
        if world and len(going) > 0:
            asked = going[example]
            said = replies(world, prompts, asked // k, sequences[asked], writes[example], column)
            said = said[next_row]                                               # (G, L)
            is_said = is_open[going, column:] & (said >= 0)
            sequences[going, column:] = torch.where(is_said, said, sequences[going, column:])
            is_open[going, column:] &= ~is_said
        # Skip columns in which no text writes: words of the world, the rest of a longer prompt.
        open_columns = is_open[going, column:].any(0).nonzero()
        if len(open_columns) == 0:
            break
        stop = column + int(open_columns[0])
        cache = {layer: kv[:, row[example]] for layer, kv in cache.items()}
        inputs = sequences[going[example], column - 1:stop]
        row, column = next_row, stop
    n, t, id = torch.cat(table, 1)
    example, view = distinct(sequences)
    kept = None if all_kept[0] is None else torch.cat(all_kept)
    return Rollout(prompts, sequences, sequences[example], n, t, id, view[n], kept)


def replies(world, prompts, b, sequences, is_asked, column):
    """Return what the world says behind the first columns of sequences (n, T), completions of
    prompts b (n,), as ids (n, T - column); -1: nothing. It has no state of its own, so it is asked
    once for equal completions of equal records."""
    task = prompts.task
    room = sequences.size(1) - column
    starts = prompts.start[b].tolist()
    records = prompts.record[b].tolist()
    rows = []
    for ids, start, record, asked in zip(sequences.tolist(), starts, records, is_asked.tolist()):
        row = []
        if asked:
            completion = task.tok.decode(ids[start:column])
            text, is_end = call_world(world, task.records[record] | {'completion': completion})
            row = task.tok.encode(text) + [task.tok.pad] * (room * is_end)
        rows.append((row + [-1] * room)[:room])
    return torch.tensor(rows, device=sequences.device)


def columns_of(r, inner=columns_of):
    """A completion is what follows its prompt; 'sampled' is what the policy wrote of it, and
    'ended' says whether the policy ended it."""
    tok = r.prompts.task.tok
    starts = r.prompts.start.repeat_interleave(r.k).tolist()
    sampled = torch.full_like(r.sequences, tok.pad)
    sampled[r.n, r.t] = r.id
    records = [r.prompts.task.records[i] for i in r.prompts.record.tolist()]
    completions = [tok.decode(ids[start:]) for ids, start in zip(r.sequences.tolist(), starts)]
    return inner(r) | {'prompt': [record['prompt'] for record in records for _ in range(r.k)],
                       'completion': completions,
                       'sampled': list(map(tok.decode, sampled.tolist())),
                       'ended': (sampled == tok.eos).any(1).tolist()}
