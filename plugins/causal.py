"""Write from left to right what follows prompts, up to and including eos. If the task has a
reply(), it is a world, which may go on behind each token that the policy writes.

include() this file in a config. It is executed in the globals of train_grpo.py: a function here
takes the place of the function of its name, which is `inner`."""
import torch.nn.functional as F

from rewards import calling, world_answer
from shared import unique_rows

blank_kind = 'answer'
CHOICES['blank_kind'] = ('answer',)
max_new_tokens = 0          # most tokens of a completion; 0: Task.length, less the prompt
MEASURED += ('max_new_tokens',)


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times. Prompts have different lengths:

        1 2 + 3 = _ _ _ _       The first column that is written is the fifth. Only the second text
        1 + 2 = _ _ _ _ _       writes there: the first still has its own `=`.
    """
    assert policy.causal, "this generator fills blanks: leave out plugins/causal.py"
    task = prompts.task
    start = prompts.start[:, None]                                              # (B, 1)
    T = max(prompts.tokens.size(1), task.longest_prompt + max_new_tokens)
    task.check(T)
    tokens = F.pad(prompts.tokens, (0, T - prompts.tokens.size(1)), value=policy.pad_id)
    at = torch.arange(T, device=tokens.device)
    blank = (at >= start) & (at < start + (max_new_tokens or T))                # (B, T)
    prompts = replace(prompts, tokens=tokens, blank=blank)
    is_open = blank.repeat_interleave(k, 0)                                     # (N, T)
    texts = tokens.masked_fill(at >= start, policy.pad_id).repeat_interleave(k, 0)
    # Texts of one prompt that are equal so far share a row of the cache. going (G,): numbers of the
    # texts that go on | inverse (G,): the row of each | rows: one text of each row, as a place in
    # going.
    going = torch.arange(len(texts), device=tokens.device)
    column = int(start.min())
    prompt = torch.cat((prompts.record[:, None], start), 1).repeat_interleave(k, 0)     # (N, 2)
    rows, inverse = unique_rows(torch.cat((prompt, texts[:, :column]), 1))
    inputs = F.pad(texts[rows, :column], (1, 0), value=policy.bos_id)
    cache, table, filters = {}, [], []
    while True:
        # Texts with longer prompts wait: their own prompt stands in this column.
        x = policy.trunk(inputs, cache)[:, -1]                                  # (rows, C)
        writes = is_open[going, column]
        text = going[writes]
        token, allowed = sample(policy.logits(x)[inverse[writes]], 1, greedy)
        token = token[:, 0]
        texts[text, column] = token
        table.append(torch.stack((text, torch.full_like(text, column), token)))
        filters.append(allowed)
        column += 1
        is_open[text[token == task.tok.eos], column:] = False
        # Which texts go on, and which of them are still equal? Say texts 0 1 2 3 are equal, 0
        # ends, and the others write b, c, b. Then going is 1 2 3, inverse 0 0 0, next_inverse
        # 0 1 0, and rows is 0 1.
        goes_on = is_open[going, column:].any(1)
        going, inverse, writes = going[goes_on], inverse[goes_on], writes[goes_on]
        rows, next_inverse = unique_rows(torch.stack((inverse, texts[going, column - 1]), 1))
        if task.reply and len(going) > 0:
            asked = going[rows]
            said = replies(prompts, asked // k, texts[asked], writes[rows], column)
            said = said[next_inverse]                                           # (G, T - column)
            is_said = is_open[going, column:] & (said >= 0)
            texts[going, column:] = torch.where(is_said, said, texts[going, column:])
            is_open[going, column:] &= ~is_said
        # Skip columns in which no text writes: words of the world, the rest of a longer prompt.
        open_columns = is_open[going, column:].any(0).nonzero()
        if len(open_columns) == 0:
            break
        stop = column + int(open_columns[0])
        # Put new rows in the order of the old ones. If each of these goes on as one, the cache can
        # stay as it is.
        order = inverse[rows].argsort()
        rows, next_inverse = rows[order], order.argsort()[next_inverse]
        if not inverse[rows].equal(torch.arange(len(inputs), device=texts.device)):
            cache = {layer: kv[:, inverse[rows]] for layer, kv in cache.items()}
        inputs = texts[going[rows], column - 1:stop]    # from the last token, which the cache lacks
        inverse, column = next_inverse, stop
    text, place, token = torch.cat(table, 1)
    rows, inverse = unique_rows(texts)          # a causal network sees a text itself
    allowed = None if filters[0] is None else torch.cat(filters)
    view = inverse[text]
    return Rollout(prompts, k, texts, texts[rows], text, place, token, view, allowed=allowed)


def replies(prompts, prompt, texts, is_asked, column):
    """Return what the world says after the first columns of texts (n, T), completions of prompts
    with the numbers prompt (n,), as ids (n, T - column). -1: it says nothing here; pad: the text
    has ended. The world has no state of its own, so it is asked once for equal completions of equal
    prompts."""
    task = prompts.task
    room = texts.size(1) - column
    starts = prompts.start[prompt].tolist()
    records = prompts.record[prompt].tolist()
    said = []
    with calling('reply', task.reply, {*task.columns, 'completion'}) as call:
        for ids, start, record, asked in zip(texts.tolist(), starts, records, is_asked.tolist()):
            row = []
            if asked:
                columns = task.records[record] | {'completion': task.tok.decode(ids[start:column])}
                text, is_end = world_answer(call(columns))
                row = task.tok.encode(text) + [task.tok.pad] * (room * is_end)
            said.append((row + [-1] * room)[:room])
    return torch.tensor(said, device=texts.device)


def columns_of(r, inner=columns_of):
    """A completion is what follows its prompt. 'sampled' is the same without the words of a world.
    'ended' says whether the policy ended it."""
    tok = r.prompts.task.tok
    starts = r.prompts.start.repeat_interleave(r.k).tolist()
    sampled = torch.full_like(r.texts, tok.pad)
    sampled[r.text, r.place] = r.token
    records = [r.prompts.task.records[i] for i in r.prompts.record.tolist()]
    completions = [tok.decode(ids[start:]) for ids, start in zip(r.texts.tolist(), starts)]
    return inner(r) | {'prompt': [record['prompt'] for record in records for _ in range(r.k)],
                       'completion': completions,
                       'sampled': list(map(tok.decode, sampled.tolist())),
                       'ended': (sampled == tok.eos).any(1).tolist()}
