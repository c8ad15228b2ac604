"""Write from left to right what follows prompts, up to and including eos. A task with a reply() is
a world: it may add words after each token that the policy writes.

include() this file in a config, before plugins/passes.py. It is executed in the globals of
train_grpo.py, and its Task, complete() and columns_of() take the place of those there. `inner` is
the old function.

Texts of a record that are equal so far share a row of the cache, so the network reads them once.
Example: the prompts `2:` and `13:`, three completions of each, and a world that says < or > after a
letter.

     text              row_of before place      due before place
                        2   3                    2   3
      0     2 : h <     0   1                    2   4
      1     2 : h <     0   1                    2   4
      2     2 : c >     0   0                    2   4
    3 to 5  1 3 :       1   2                    3   3

At place 2 the texts 0 to 2 are due. The network reads what is unread of both rows, `bos 2 :` and
`bos 1 3`, and the policy writes h, h, c. The world says <, <, >. (It is asked once about both h.)
So these texts are due again at 4. Row 0 splits, because its texts differ now: the rows 0, 1, 2 go
on from the rows 0, 0, 1 (old_row). Then the texts 3 to 5 are due, and c, h and `:` are unread."""
from itertools import zip_longest

import torch.nn.functional as F

from model import unique_rows
from plumbing.rewards import world_answers

assert 'n_fill_steps' not in globals(), "include plugins/causal.py before plugins/passes.py"

blank_kind = 'answer'
CHOICES['blank_kind'] = ('answer',)
CHOICES['compile'] = (False,)       # each place has another size, so torch would compile all steps
max_new_tokens = 0          # limit of a completion, in tokens; 0: as many as fit in T places
# An evaluation depends on it, so a run that goes on with another limit gets a new line to beat.
MEASURED += ('max_new_tokens',)

# sizes: B prompts | N texts of T places, G of them go on | S rows of the cache, with L unread ids
# C channels


class Task(Task):
    """A Task with room for completions."""
    kind = 'causal'

    def __init__(self, *words):
        super().__init__(*words)
        self.check_length(self.longest_prompt + max_new_tokens)


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times, place by place. The drawing above explains the names."""
    # Make room for completions after the prompts.
    task = prompts.task
    length = prompts.tokens.size(1)
    T = max(length, task.longest_prompt + max_new_tokens)
    task.check_length(T)
    tokens = F.pad(prompts.tokens, (0, T - length), value=policy.pad_id)        # (B, T)
    due = prompts.start.repeat_interleave(k)    # (N,) where the policy writes next
    stop = (due + (max_new_tokens or T)).clamp(max=T)       # (N,) where the room ends
    places = torch.arange(T, device=due.device)
    is_after = places >= due[:, None]                                           # (N, T)
    prompts = replace(prompts, tokens=tokens, blank=(is_after & (places < stop[:, None]))[::k])
    texts = tokens.repeat_interleave(k, 0).masked_fill(is_after, policy.pad_id)         # (N, T)
    # At first a row for each record. (pretrain.py draws starts, so there a record has several.)
    same = torch.stack((prompts.record, prompts.start), 1).repeat_interleave(k, 0)
    example, row_of = unique_rows(same)         # (S,) a text of each row; (N,)
    first = int(due.min())
    unread = F.pad(texts[example, :first], (1, 0), value=policy.bos_id)             # (S, L)
    cache = {}
    table, filters = [], []                     # filters: which ids were allowed, or None
    seen = []                                   # (N,) by a world
    if task.reply:
        seen = [Completion(i, []) for i in prompts.record.repeat_interleave(k).tolist()]
    for at in range(first, T):
        writers = ((due == at) & (at < stop)).nonzero()[:, 0]
        if len(writers):                        # else only prompts, or words of a world, are here
            x = policy.trunk(unread, cache)[:, -1]                              # (S, C)
            unread = unread[:, :0]
            token, allowed = sample(policy.logits(x)[row_of[writers]], 1, greedy)
            token = token.flatten()                                             # (writers,)
            table.append(torch.stack((writers, torch.full_like(writers, at), token)))
            filters.append(allowed)
            texts[writers, at] = token
            due[writers] = torch.where(token == task.tok.eos, T, at + 1)
            if task.reply:
                asked = writers[due[writers] < stop[writers]]
                begun = [seen[n] for n in asked.tolist()]
                words, n_lost = replies(task, begun, texts[asked, at], (stop - due)[asked])
                due[asked] += n_lost
                for place, ids in enumerate(words, at + 1):
                    texts[asked, place] = texts.new_tensor(ids)
        going = (due < stop).nonzero()[:, 0]    # (G,) the texts that go on
        if len(going) == 0:
            break
        # Split rows. A new row is an old row and an id. torch.unique is slow for pairs, so a pair
        # is one number here, as two digits make one. (pad_id is above all ids of texts.)
        pair = row_of[going] * policy.pad_id + texts[going, at]                 # (G,)
        pairs, row_of[going] = pair.unique(return_inverse=True)                 # (S,), (G,)
        old_row = pairs // policy.pad_id                                        # (S,)
        if old_row.tolist() != [*range(len(unread))]:           # else the cache fits
            cache = {layer: kv[:, old_row] for layer, kv in cache.items()}
        unread = torch.cat((unread[old_row], pairs[:, None] % policy.pad_id), 1)
    text_of, place, token = torch.cat(table, 1)
    allowed = None if filters[0] is None else torch.cat(filters)
    rows, view = unique_rows(texts)             # the view of a token is its whole text
    return Rollout(prompts, k, texts, texts[rows], text_of, place, token, view[text_of],
                   allowed=allowed)


# ---- a world -------------------------------------------------------------------------------------
@dataclass
class Completion:
    """A completion, as a world has seen it when it was asked the last time, with its answer."""
    record: int         # its number
    ids: list
    text: str = ''


def replies(task, begun, tokens, room):
    """Add to n Completions the tokens (n,) that the policy has written, and what the world says
    then, if there is room for it (n,), in ids. Return its words: a list of n ids for the next
    place, another one for the place after it, ..., in which padding stands for nothing. Return
    also how many places the policy loses (n,): those of words, or all if the world ends the text.
    """
    tok = task.tok
    is_char = tok.vocabulary.get('kind') == 'char'
    cases = {}                  # a world has no state: equal completions of a record are one case
    for x, token in zip(begun, tokens.tolist()):
        x.ids += [token]
        # A text grows by a character. But a token of a language model can be a part of a character,
        # so there all ids are decoded again.
        x.text = x.text + tok.show([token]) if is_char else tok.decode(x.ids)
        cases[x.record, x.text] = task.records[x.record] | {'completion': x.text}
    answers = dict(zip(cases, world_answers(task.reply, [*cases.values()])))
    words, n_lost = [], []
    for x, n in zip(begun, room.tolist()):
        said, is_end = answers[x.record, x.text]
        ids = tok.encode(said)[:n]
        x.ids += ids
        x.text += said
        words.append(ids)
        n_lost.append(n if is_end else len(ids))
    return zip_longest(*words, fillvalue=tok.pad), tokens.new_tensor(n_lost)


# ---- text again ----------------------------------------------------------------------------------
def columns_of(r, inner=columns_of):
    """A completion is what follows its prompt. 'sampled' is the same without the words of a world.
    'ended' says whether the policy ended it."""
    columns = inner(r)
    tok = r.prompts.task.tok
    completions = r.texts.where(r.prompts.blank.repeat_interleave(r.k, 0), tok.pad)
    sampled = torch.full_like(r.texts, tok.pad)
    sampled[r.text_of, r.place] = r.token
    columns['prompt'] = [r.prompts.task.records[i]['prompt']
                         for i in r.prompts.record.tolist() for _ in range(r.k)]
    columns['completion'] = list(map(tok.decode, completions.tolist()))
    columns['sampled'] = list(map(tok.decode, sampled.tolist()))
    columns['ended'] = (sampled == tok.eos).any(1).tolist()
    return columns
