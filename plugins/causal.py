"""Write from left to right what follows prompts, up to and including eos. A task with a reply() is
a world: it may add words after each token that the policy writes.

include() this file in a config. It is executed in the globals of train_grpo.py, and its complete()
and columns_of() take the place of those there. `inner` is the old function."""
import torch.nn.functional as F

from model import unique_rows
from plumbing.rewards import world_answers

blank_kind = 'answer'
CHOICES['blank_kind'] = ('answer',)
CHOICES['compile'] = (False,)       # each column has another size, so torch would compile all steps
max_new_tokens = 0          # limit of a completion, in tokens; 0: as many as fit in T places
MEASURED += ('max_new_tokens',)     # an evaluation depends on it

# sizes: B prompts | N texts of T places, G of them go on | S rows of the cache | C channels


class Task(Task):
    """A Task with room for completions."""
    kind = 'causal'

    def __init__(self, *words):
        super().__init__(*words)
        self.check_length(self.longest_prompt + max_new_tokens)


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times, column by column. Prompts have different lengths:

        1 2 + 3 = _ _ _ _       The first column that is written is the fifth. Only the second text
        1 + 2 = _ _ _ _ _       writes there: the first still has its own `=`.
    """
    # Make room for completions after the prompts.
    task = prompts.task
    length = prompts.tokens.size(1)
    T = max(length, task.longest_prompt + max_new_tokens)
    task.check_length(T)
    tokens = F.pad(prompts.tokens, (0, T - length), value=policy.pad_id)        # (B, T)
    start = prompts.start[:, None]                                              # (B, 1)
    at = torch.arange(T, device=tokens.device)
    is_after = at >= start                                                      # (B, T)
    blank = is_after & (at < start + (max_new_tokens or T))
    prompts = replace(prompts, tokens=tokens, blank=blank)
    writes = blank.repeat_interleave(k, 0)      # (N, T) places that the policy writes
    shown = tokens.masked_fill(is_after, policy.pad_id).repeat_interleave(k, 0)
    inputs = F.pad(shown, (1, 0), value=policy.bos_id)                          # (N, 1 + T)
    texts = inputs[:, 1:]                       # shared memory: what is written is an input, too
    # Texts that are equal so far are one kind, and the network reads each kind once. rows (S,): a
    # text of each kind; inverse (N,): the kind of each text that goes on. At first a kind is a
    # record, not a prompt, because a world may read other columns of the record.
    same = torch.stack((prompts.record, prompts.start), 1)                      # (B, 2)
    rows, inverse = unique_rows(same.repeat_interleave(k, 0))
    n_ids = policy.pad_id + 1                   # padding has the largest id
    n_read = 0                                  # columns of inputs that are in the cache
    cache = {}
    filters = []                                # of each column which ids were allowed, or None
    for column in range(int(start.min()), T):
        text = writes[:, column].nonzero()[:, 0]        # numbers of the texts that write here
        if len(text) == 0:                      # only prompts, words of a world, and padding here
            continue
        unread = inputs[rows, n_read:column + 1]
        n_read = column + 1
        x = policy.trunk(unread, cache)[:, -1]                                  # (S, C)
        token, allowed = sample(policy.logits(x)[inverse[text]], 1, greedy)     # (texts, 1)
        filters.append(allowed)
        texts[text, column] = token[:, 0]
        writes[text, column + 1:] &= token != task.tok.eos
        going = writes[:, column + 1:].any(1).nonzero()[:, 0]       # (G,) the texts that go on
        if len(going) == 0:
            break
        # Which texts are still equal? Example: texts 0 1 2 3 were equal. 0 has ended, the others
        # wrote b c b. Then there are two kinds, b and c, and both continue row 0 of the cache.
        code = inverse[going] * n_ids + texts[going, column]                    # (G,)
        kinds, inverse[going] = code.unique(return_inverse=True)
        rows = torch.empty_like(kinds)
        rows[inverse[going]] = going            # any one text of each kind
        old_row = kinds // n_ids                # row of the cache; if 0 1 2 ..., the cache fits
        if not old_row.equal(torch.arange(len(x), device=x.device)):
            cache = {layer: kv[:, old_row] for layer, kv in cache.items()}
        if task.reply:                          # the policy does not write where the world speaks
            said = replies(prompts, rows // k, texts[rows], writes[rows, column], column + 1)
            said = said[inverse[going]]                                         # (G, T)
            is_said = writes[going] & (said >= 0)
            texts[going] = said.where(is_said, texts[going])
            writes[going] &= ~is_said
    place, text_of = writes.T.nonzero(as_tuple=True)    # column by column, as they were sampled
    token = texts[text_of, place]
    allowed = None if filters[0] is None else torch.cat(filters)
    rows, inverse = unique_rows(texts)          # the view is the whole text
    view_of = inverse[text_of]
    return Rollout(prompts, k, texts, texts[rows], text_of, place, token, view_of, allowed=allowed)


def replies(prompts, number, texts, is_asked, column):
    """Return ids (n, T): what the world says after texts[:, :column], if is_asked (n,). -1: nothing
    is said here; pad: the text has ended. Text i (T,) continues prompt number[i]. A world has no
    state of its own, so the caller gives equal completions of a record once."""
    task = prompts.task
    T = texts.size(1)
    asked = is_asked.nonzero()[:, 0]
    lists = [x[asked].tolist() for x in (texts, prompts.start[number], prompts.record[number])]
    cases = []
    for ids, start, record in zip(*lists):
        cases.append(task.records[record] | {'completion': task.tok.decode(ids[start:column])})
    said = [[-1] * T for _ in range(len(texts))]
    for i, (words, is_end) in zip(asked.tolist(), world_answers(task.reply, cases)):
        rest = task.tok.pad if is_end else -1
        row = task.tok.encode(words) + [rest] * T
        said[i][column:] = row[:T - column]
    return torch.tensor(said, device=texts.device)


def columns_of(r, inner=columns_of):
    """A completion is what follows its prompt. 'sampled' is the same without the words of a world.
    'ended' says whether the policy ended it."""
    columns = inner(r)
    task = r.prompts.task
    decode = task.tok.decode
    records = r.prompts.record.repeat_interleave(r.k).tolist()
    starts = r.prompts.start.repeat_interleave(r.k).tolist()
    sampled = torch.full_like(r.texts, task.tok.pad)
    sampled[r.text_of, r.place] = r.token
    columns['prompt'] = [task.records[i]['prompt'] for i in records]
    columns['completion'] = [decode(ids[start:]) for ids, start in zip(r.texts.tolist(), starts)]
    columns['sampled'] = list(map(decode, sampled.tolist()))
    columns['ended'] = (sampled == task.tok.eos).any(1).tolist()
    return columns
