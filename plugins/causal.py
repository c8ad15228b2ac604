"""Write from left to right what follows prompts, up to and including eos. A task with a reply() is
a world: it may add words after each token that the policy writes.

This file is executed in the globals of train_grpo.py, and its Task, complete() and columns_of()
take the place of those there. `inner` is the old function. The same without a cache and without a
world, in twelve lines, is write() of config/networks/writes.py: read it first.

Texts of a prompt that are equal so far share a row of the cache, so the network reads them once.
Example: the prompts `2:` and `13:`, three completions of each, and a world that says < or > after a
letter.

     text              row_of, before place     due, before place
                        2   3                    2   3
      0     2 : h <     0   1                    2   4
      1     2 : h <     0   1                    2   4
      2     2 : c >     0   0                    2   4
    3 to 5  1 3 :       1   2                    3   3

At place 2 the texts 0 to 2 are due. The network reads what is unread of both rows, `bos 2 :` and
`bos 1 3`, and the policy writes h, h, c. The world says <, <, >. (It is asked once about both h.)
So these texts are due again at 4. Row 0 splits, because its texts differ now: the rows 0, 1, 2 go
on from the rows 0, 0, 1 (old_row). Then the texts 3 to 5 are due, and c, h and `:` are unread."""
import torch.nn.functional as F

from model import unique_rows
from plumbing.rewards import call_each

blank_kind = 'answer'
max_new_tokens = 0          # limit of a completion, in tokens; 0: as many as fit in T places

# sizes: B prompts | N texts of T places, G of them go on | S rows of the cache, with L unread ids
# C channels


class Task(Task):
    """A Task with room for completions."""
    kind = 'causal'

    def __init__(self, *words):
        super().__init__(*words)
        assert self.blank_kind == 'answer', "blank_kind: plugins/causal.py expects 'answer'"
        self.length = max(self.length, self.longest_prompt + max_new_tokens)            # T
        self.check_length(self.length)

    def prompts_of(self, *words):
        """Return Prompts in which all is blank that a completion may fill."""
        prompts = super().prompts_of(*words)
        nth = (prompts.blank.cumsum(1) > 0).cumsum(1)       # (B, T) in the prompt 0, then 1 2 3 ...
        return replace(prompts, blank=(0 < nth) & (nth <= (max_new_tokens or self.length)))


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times, place by place. The drawing above explains the names."""
    task = prompts.task
    due = prompts.start.repeat_interleave(k)    # (N,) where the policy writes next, if before stop
    stop = due + prompts.blank.sum(1).repeat_interleave(k)      # (N,) where the room ends
    is_prompt = prompts.blank.cumsum(1) == 0                                        # (B, T)
    texts = prompts.tokens.where(is_prompt, policy.pad_id).repeat_interleave(k, 0)  # (N, T)
    example, row_of = unique_rows(texts)        # (S,) a text of each row; (N,)
    first = int(due.min())
    unread = F.pad(texts[example, :first], (1, 0), value=policy.bos_id)             # (S, L)
    cache, table = {}, []
    for at in range(first, task.length):
        # Due: if no text is, only prompts, or words of a world, are here.
        writers = ((due == at) & (at < stop)).nonzero()[:, 0]
        if len(writers):
            # Read.
            x = policy.trunk(unread, cache)[:, -1]                              # (S, C)
            unread = unread[:, :0]              # all S rows, and of each nothing
            # Write.
            token = sample(policy.logits(x)[row_of[writers]], 1, greedy)[:, 0]          # (writers,)
            table.append(torch.stack((writers, torch.full_like(writers, at), token)))
            texts[writers, at] = token
            due[writers] = torch.where(token == task.tok.eos, task.length, at + 1)
            # Ask the world.
            unfinished = writers[due[writers] < stop[writers]]
            if task.reply and len(unfinished):
                texts[unfinished], n_lost = replies(task, prompts.record[unfinished // k],
                                                    texts[unfinished, :at + 1],
                                                    (stop - due)[unfinished])
                due[unfinished] += n_lost
        going = (due < stop).nonzero()[:, 0]    # (G,) the texts that go on
        # Split rows. A new row is an old row and an id. torch.unique is slow for pairs, so a pair
        # is one number here, as two digits make one. (pad_id is above all ids of texts.)
        pair = row_of[going] * policy.pad_id + texts[going, at]                 # (G,)
        pairs, row_of[going] = pair.unique(return_inverse=True)                 # (S,), (G,)
        old_row = pairs // policy.pad_id                                        # (S,)
        if old_row.tolist() != [*range(len(unread))]:           # else the cache fits
            cache = {layer: kv[:, old_row] for layer, kv in cache.items()}
        unread = torch.cat((unread[old_row], pairs[:, None] % policy.pad_id), 1)
    rows, view = unique_rows(texts)             # the view of a token is its whole text
    text_of, place, token = torch.cat(table, 1)
    return Rollout(prompts, k, texts, texts[rows], text_of, place, token, view[text_of])


# ---- a world -------------------------------------------------------------------------------------
def replies(task, record, texts, room):
    """Ask the world about n texts, all of one length, of records (n,). Return the texts (n, T) with
    what it says, as far as there is room (n,). Return also how many places the policy loses (n,):
    those of words, or all the room if the world ends the text."""
    texts = texts.tolist()
    keys = [(i, task.tok.show(ids[task.rows[i].n_prompt:]))
            for i, ids in zip(record.tolist(), texts)]
    # A world has no state: equal completions of a record are one case.
    cases = {(i, text): task.records[i] | {'completion': text} for i, text in keys}
    answers = dict(zip(cases, call_each(task.reply, [*cases.values()])))
    n_lost = []
    for key, ids, n in zip(keys, texts, room.tolist()):
        said = answers[key]
        said, is_end = said if isinstance(said, tuple) else (said or '', False)
        words = task.tok.encode(said)[:n]
        ids += words
        n_lost.append(n if is_end else len(words))
    return task.pad(texts).to(room.device), room.new_tensor(n_lost)


# ---- text again ----------------------------------------------------------------------------------
def columns_of(r, inner=columns_of):
    """A completion is what follows its prompt. 'sampled' is the same without the words of a world.
    'ended' says whether the policy ended it."""
    task = r.prompts.task
    sampled = torch.full_like(r.texts, task.tok.pad)
    sampled[r.text_of, r.place] = r.token
    completions = r.texts.where(r.prompts.blank.repeat_interleave(r.k, 0), task.tok.pad)
    return inner(r) | {
        'prompt': [task.records[i]['prompt']
                   for i in r.prompts.record.repeat_interleave(r.k).tolist()],
        'completion': list(map(task.tok.decode, completions.tolist())),
        'sampled': list(map(task.tok.decode, sampled.tolist())),
        'ended': (sampled == task.tok.eos).any(1).tolist()}
