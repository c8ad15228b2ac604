"""Write from left to right what follows prompts, up to and including eos. A task with a reply() is
a world: it may add words after each token that the policy writes.

include() this file in a config, before plugins/passes.py. It is executed in the globals of
train_grpo.py, and its Task, complete() and columns_of() take the place of those there. `inner` is
the old function.

Texts that are equal so far share a row of the cache, so the network reads them once. Example: three
completions of each of two prompts, `2:` and `13:`. After a letter the world says < or >.

            place             row_of before place     due before place
    text    0 1 2 3 4 5           2   3                   2   3
     0      2 : h < _ _           0   0                   2   4
     1      2 : h < _ _           0   0                   2   4
     2      2 : c > _ _           0   1                   2   4
    3 to 5  1 3 : _ _ _           1   2                   3   3

At first each record has a row. At 2 the texts 0 to 2 are due. The network reads bos and two ids of
both rows, the policy writes h, h and c, and the world, which is asked once for each completion of a
record, says <, < and >. So these texts are due again at 4. Texts of a row that differ part: rows 0,
1, 2 of the cache are now the old rows 0, 0, 1 (old_row). At 3 the others are due."""
import torch.nn.functional as F

from model import unique_rows
from plumbing.rewards import world_answers

assert 'n_fill_steps' not in globals(), "include plugins/causal.py before plugins/passes.py"

blank_kind = 'answer'
CHOICES['blank_kind'] = ('answer',)
CHOICES['compile'] = (False,)       # each place has another size, so torch would compile all steps
max_new_tokens = 0          # limit of a completion, in tokens; 0: as many as fit in T places
# An evaluation depends on it: a run that is resumed with another limit gets a new line to beat.
MEASURED += ('max_new_tokens',)

# sizes: B prompts | N texts of T places, G of them go on | S rows of the cache | C channels
# W ids of the longest words of a world


class Task(Task):
    """A Task with room for completions."""
    kind = 'causal'

    def __init__(self, *words):
        super().__init__(*words)
        self.check_length(self.longest_prompt + max_new_tokens)


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times, place by place."""
    # Make room for completions after the prompts.
    task = prompts.task
    length = prompts.tokens.size(1)
    T = max(length, task.longest_prompt + max_new_tokens)
    task.check_length(T)
    tokens = F.pad(prompts.tokens, (0, T - length), value=policy.pad_id)        # (B, T)
    due = prompts.start                         # (B,) where the policy writes next
    stop = (due + (max_new_tokens or T)).clamp(max=T)       # (B,) the end of the room
    places = torch.arange(T, device=due.device)
    is_after = places >= due[:, None]                                           # (B, T)
    prompts = replace(prompts, tokens=tokens, blank=is_after & (places < stop[:, None]))
    told = []                                   # (N,) for a world
    if task.reply:
        rooms = zip(prompts.record.tolist(), (stop - due).tolist())
        told = [Completion(record, room, []) for record, room in rooms for _ in range(k)]
    # A row for each record, and not for equal prompts: a world may read other columns. (pretrain.py
    # evaluates with random blanks, so there a record has several starts.)
    same = torch.stack((prompts.record, prompts.start), 1).repeat_interleave(k, 0)
    example, row_of = unique_rows(same)         # (S,) a text of each row, any one; (N,)
    texts = tokens.masked_fill(is_after, policy.pad_id).repeat_interleave(k, 0)         # (N, T)
    due, stop = due.repeat_interleave(k), stop.repeat_interleave(k)             # (N,) each
    going = torch.arange(len(texts), device=due.device)     # (G,) the texts that go on
    cache = {}
    n_read = 0                                  # places that are in the cache
    table, filters = [], []                     # filters: which ids were allowed, or None
    for at in range(int(due.min()), T):
        writers = going[due[going] == at]
        if len(writers) > 0:                    # else here are only prompts, or words of a world
            unread = texts[example, n_read:at]
            if not cache:                       # all texts begin with bos
                unread = F.pad(unread, (1, 0), value=policy.bos_id)
            n_read = at
            x = policy.trunk(unread, cache)[:, -1]                              # (S, C)
            token, allowed = sample(policy.logits(x)[row_of[writers]], 1, greedy)
            token = token[:, 0]                                                 # (writers,)
            table.append(torch.stack((writers, torch.full_like(writers, at), token)))
            filters.append(allowed)
            texts[writers, at] = token
            due[writers] = torch.where(token == task.tok.eos, T, at + 1)
            asked = writers[due[writers] < stop[writers]] if task.reply else []
            if len(asked) > 0:
                words, n_taken = replies(task, [told[n] for n in asked.tolist()], texts[asked, at])
                texts[asked, at + 1:at + 1 + words.size(1)] = words
                due[asked] += n_taken
        going = (due < stop).nonzero()[:, 0]
        if len(going) == 0:
            break
        # Split rows. A new row is an old row and an id, as one number, because torch.unique is slow
        # for pairs. (No id that can stand here is as large as pad_id.)
        row_and_id = row_of[going] * policy.pad_id + texts[going, at]           # (G,)
        new_rows, row_of[going] = row_and_id.unique(return_inverse=True)        # (S,), (G,)
        old_row = new_rows // policy.pad_id                                     # (S,)
        if old_row.tolist() != [*range(len(example))]:          # else the cache fits
            cache = {layer: kv[:, old_row] for layer, kv in cache.items()}
        example = torch.empty_like(new_rows)
        example[row_of[going]] = going
    text_of, place, token = torch.cat(table, 1)
    allowed = None if filters[0] is None else torch.cat(filters)
    rows, view = unique_rows(texts)             # the view of a token is its whole text
    return Rollout(prompts, k, texts, texts[rows], text_of, place, token, view[text_of],
                   allowed=allowed)


# ---- a world -------------------------------------------------------------------------------------
@dataclass
class Completion:
    """A completion as a world sees it: what the policy and the world have written so far."""
    record: int         # its number
    room: int           # for ids
    ids: list
    text: str = ''


def replies(task, told, tokens):
    """Add to n Completions the tokens (n,) that the policy has written, and what the world says
    then. Return its words, ids (n, W) with padding behind them, and how many places they take from
    the policy (n,): all if they end the text."""
    tok = task.tok
    is_char = tok.vocabulary.get('kind') == 'char'
    cases = {}                  # a world has no state: equal completions of a record are one case
    for x, token in zip(told, tokens.tolist()):
        x.ids.append(token)
        # A text grows by a character. But a token of a language model can be a part of a character,
        # so there all ids are decoded again.
        x.text = x.text + tok.show([token]) if is_char else tok.decode(x.ids)
        cases[x.record, x.text] = task.records[x.record] | {'completion': x.text}
    answers = dict(zip(cases, world_answers(task.reply, [*cases.values()])))
    words, n_taken = [], []
    for x in told:
        said, is_end = answers[x.record, x.text]
        ids = tok.encode(said)[:x.room - len(x.ids)]        # what has no room is cut
        x.ids += ids
        x.text += said
        words.append(ids)
        n_taken.append(x.room if is_end else len(ids))
    W = max(map(len, words))
    words = [ids + [tok.pad] * (W - len(ids)) for ids in words]
    return tokens.new_tensor(words), tokens.new_tensor(n_taken)


# ---- text again ----------------------------------------------------------------------------------
def columns_of(r, inner=columns_of):
    """A completion is what follows its prompt. 'sampled' is the same without the words of a world.
    'ended' says whether the policy ended it."""
    columns = inner(r)
    tok = r.prompts.task.tok
    completions = r.texts.where(r.prompts.blank.repeat_interleave(r.k, 0), tok.pad)
    sampled = torch.full_like(r.texts, tok.pad)
    sampled[r.text_of, r.place] = r.token
    records = r.prompts.record.repeat_interleave(r.k).tolist()
    columns['prompt'] = [r.prompts.task.records[i]['prompt'] for i in records]
    columns['completion'] = list(map(tok.decode, completions.tolist()))
    columns['sampled'] = list(map(tok.decode, sampled.tolist()))
    columns['ended'] = (sampled == tok.eos).any(1).tolist()
    return columns
