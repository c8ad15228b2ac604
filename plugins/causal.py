"""Write from left to right: prompt, answer, and eos, the token that ends a text. This is the GRPO
that most people know.

    python train_grpo.py config/grpo_causal.py          # 12+35= becomes 12+35=047

At each position a text already has a token, from its prompt, or the policy draws one. There is one
more writer: a dataset can be a world, such as a game. Its function reply() is asked after each
token that the policy draws, and may add words. Example: guess the secret letter. The world answers
< if the secret comes before the letter, > if it comes after it, and = if it is the letter; then the
game is over. The prompts are `2:` and `13:`, two completions of each. Brackets mark what the policy
draws:

    position   0  1   2   3   4   5
    text 0     2  :  [h]  <  [d]  >  ...
         1     2  :  [c]  <  [b]  =
         2     1  3   :  [k]  >  [m] ...
         3     1  3   :  [a]  >  [h] ...

This file is executed in the globals of train_grpo.py: torch, replace, Rollout, sample and others
come from there. Its Task, complete() and columns_of() replace the ones there; `inner` is the old
function."""
import torch.nn.functional as F

from plumbing.process import Mistake, expect
from plumbing.rewards import call_each
from plumbing.sharing import unique_rows

include('plugins/skip.py')

blank_kind = 'answer'
max_new_tokens = 0          # limit of a completion, in tokens; 0: as many as fit in T positions


class Task(Task):
    """A Task with room for completions."""
    kind = 'causal'

    def __init__(self, *words):
        super().__init__(*words)
        expect(self.blank_kind == 'answer', "blank_kind = 'random': plugins/causal.py expects "
               "'answer'")
        self.length = max(self.length, self.longest_prompt + max_new_tokens)            # T
        self.check_length(self.length)

    def row_to_fill(self, shown, answer, record):
        raise Mistake(f"{record!r:.200}: a prompt with _ is for a network that fills blanks: leave "
                      "out plugins/causal.py")

    def prompts_of(self, *words):
        """Return Prompts in which all positions are blank that a completion may take."""
        prompts = super().prompts_of(*words)
        first = prompts.start[:, None]                                                  # (B, 1)
        position = torch.arange(self.length, device=first.device)                       # (T,)
        last = first + (max_new_tokens or self.length)
        return replace(prompts, blank=(first <= position) & (position < last))


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times: N texts."""
    task, empty = prompts.task, policy.pad_id           # empty: an unwritten position
    is_prompt = prompts.blank.cumsum(1) == 0                                            # (B, T)
    texts = prompts.whole.where(is_prompt, empty).repeat_interleave(k, 0)               # (N, T)
    # The first position (N,) that a text may not use: now the limit of its length, later its end.
    end = (prompts.start + prompts.blank.sum(1)).repeat_interleave(k)

    # 1. Read what comes before the first completion, once for each prompt.
    first = int(prompts.start.min())
    cache = {}
    inputs = F.pad(texts[::k, :first], (1, 0), value=policy.bos_id)             # (B, 1 + first)
    x = policy.trunk(inputs, cache)[:, -1]              # (B, C) predicts the token at `first`

    # 2. The k completions of a prompt continue from copies of its keys and values.
    active = torch.arange(len(texts), device=texts.device)      # numbers of the texts that go on
    x, cache = x[active // k], rows_of_cache(cache, active // k)

    # 3. Go from position to position: read, draw, ask the world, drop the texts that have ended.
    n_read = first                              # positions that have been read
    table = []
    for at in range(first, task.length):
        is_empty = texts[active, at] == empty                                   # (active,)
        if is_empty.any():                      # else all texts already have a token here
            if n_read < at:                     # catch up: one token, or more after a world's words
                x = policy.trunk(texts[active, n_read:at], cache)[:, -1]        # (active, C)
                n_read = at
            drawing = active[is_empty]
            token = sample(policy.logits(x[is_empty]), 1, greedy)[:, 0]         # (drawing,)
            texts[drawing, at] = token
            table.append(torch.stack((drawing, torch.full_like(drawing, at))))
            end[drawing[token == task.tok.eos]] = at + 1
            if task.reply:
                asking = drawing[end[drawing] > at + 1]     # not ended, and there is room
                ask_world(task, prompts.record[asking // k], texts, end, asking, at + 1)
        is_active = end[active] > at + 1                                        # (active,)
        if not is_active.any():
            break
        if not is_active.all():
            active, cache = active[is_active], rows_of_cache(cache, is_active)
    text_of, position = torch.cat(table, 1)                                     # (M,) each
    # The view of a token is its whole text: a causal network reads only what stands before it.
    rows, inverse = unique_rows(texts)          # equal texts are one view
    return Rollout(prompts, k, texts, texts[rows], text_of, position, inverse[text_of])


def rows_of_cache(cache, rows):
    """Return a cache with these texts (indices or bool) of another one."""
    return {layer: kv[:, rows] for layer, kv in cache.items()}


# ---- a world -------------------------------------------------------------------------------------
def ask_world(task, record, texts, end, asking, at):
    """Let the world write into texts (N, T), from position `at` on, as far as there is room.

    asking: the numbers (n,) of the texts that it may answer. record (n,): the numbers of their
    records. Where the world ends a text, its `end` changes."""
    record = record.tolist()
    written = [task.tok.show(ids[task.rows[i].n_prompt:])
               for i, ids in zip(record, texts[asking, :at].tolist())]
    # reply() has no memory, so equal completions of one record are asked about once.
    cases = {(i, text): task.records[i] | {'completion': text} for i, text in zip(record, written)}
    answers = dict(zip(cases, call_each('reply', task.reply, [*cases.values()])))
    for n, i, text in zip(asking.tolist(), record, written):
        words, is_end = words_of_reply(answers[i, text], task.records[i], text)
        try:
            ids = task.tok.encode(words)[:int(end[n]) - at]
        except Mistake as e:
            raise Mistake(f"{e}, in what reply() returned to {text!r:.100} of "
                          f"{task.records[i]!r:.200}") from None
        texts[n, at:at + len(ids)] = texts.new_tensor(ids)
        if is_end:
            end[n] = at + len(ids)


def words_of_reply(said, record, completion):
    """Return what reply() said, None, a text, or (text, True), as a text and a bool."""
    words, is_end = said if isinstance(said, tuple) and len(said) == 2 else (said, False)
    expect(isinstance(words, str | None) and isinstance(is_end, bool), (
        f"reply() returned {said!r:.100} to {completion!r:.100} of {record!r:.200}: expected None, "
        "a text, or (text, True)"))
    return words or '', is_end


# ---- text again ----------------------------------------------------------------------------------
def columns_of(rollout, inner=columns_of):
    """A completion is what follows its prompt. Two columns more: 'sampled', the completion without
    the words of a world, and 'ended', whether the policy has ended it."""
    prompts, texts, pad = rollout.prompts, rollout.texts, rollout.prompts.task.tok.pad
    tok, records = prompts.task.tok, prompts.task.records
    sampled = torch.full_like(texts, pad)
    sampled[rollout.text_of, rollout.position] = rollout.token
    completions = texts.where(prompts.blank.repeat_interleave(rollout.k, 0), pad)
    record = prompts.record.repeat_interleave(rollout.k).tolist()
    return inner(rollout) | {
        'prompt': [records[i]['prompt'] for i in record],       # as it is written in the dataset
        'completion': [tok.decode(ids) for ids in completions.tolist()],
        'sampled': [tok.decode(ids) for ids in sampled.tolist()],
        'ended': (sampled == tok.eos).any(1).tolist()}
