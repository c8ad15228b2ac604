"""Write from left to right: prompt, answer, and eos, the token that ends a text. This is the GRPO
that most people know.

    python train_grpo.py config/grpo_causal.py          # 12+35= becomes 12+35=047

At each position a text already has a token, from its prompt, or the policy draws one. (If the
dataset is a world, such as a game, it can write, too: plugins/world.py.) Example: the prompts
`12+35=` and `9+4=`, two completions of each. Brackets mark what the policy draws:

    position   0   1   2   3   4   5    6    7    8    9
    text 0     1   2   +   3   5   =   [0]  [4]  [7] [eos]
         1     1   2   +   3   5   =   [3]  [7] [eos]
         2     9   +   4   =  [0]  [1] [3] [eos]
         3     9   +   4   =  [1] [eos]

Each token in brackets has a row in the table. Its view is its whole text, because a causal network
reads only what stands before a token, and this never changes.

This file is executed in the globals of train_grpo.py: torch, replace, Rollout, sample and others
come from there. Its functions replace the ones there; `inner` is the old function,
and super() the old class."""
import torch.nn.functional as F

from plumbing.process import Mistake, expect
from plumbing.sharing import unique_rows

include('plugins/skip.py')          # saves time: texts that teach nothing are not read

blank_kind = 'answer'
max_new_tokens = 0          # limit of a completion, in tokens; 0: as many as fit in T positions


class Task(Task):
    """A Task with room for completions."""
    kind = 'causal'

    def __init__(self, *arguments):
        super().__init__(*arguments)
        expect(self.blank_kind == 'answer', "blank_kind = 'random': plugins/causal.py expects "
               "'answer'")
        self.length = max(self.length, self.longest_prompt + max_new_tokens)            # T
        self.check_length(self.length)

    def row_to_fill(self, shown, answer, record):
        raise Mistake(f"{record!r:.200}: a prompt with _ is for a network that fills blanks, and "
                      "plugins/causal.py continues prompts: write it without _, or leave out "
                      "plugins/causal.py")

    def prompts_of(self, *arguments):
        """Return Prompts in which all positions are blank that a completion may take."""
        prompts = super().prompts_of(*arguments)
        first = prompts.start[:, None]                                                  # (B, 1)
        position = torch.arange(self.length, device=first.device)                       # (T,)
        stop = first + (max_new_tokens or self.length)
        return replace(prompts, blank=(first <= position) & (position < stop))


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Continue each of B prompts k times: N texts."""
    task, empty = prompts.task, policy.pad_id           # empty: an unwritten position
    is_prompt = prompts.blank.cumsum(1) == 0                                            # (B, T)
    texts = prompts.whole.where(is_prompt, empty).repeat_interleave(k, 0)               # (N, T)
    # The first position (N,) that a text may not use: at first its limit, then where it has ended.
    end = (prompts.start + prompts.blank.sum(1)).repeat_interleave(k)

    # 1. Read each prompt once for its k texts, as far as the shortest prompt goes.
    first = int(prompts.start.min())
    cache = {}
    inputs = F.pad(texts[::k, :first], (1, 0), value=policy.bos_id)             # (B, 1 + first)
    x = policy.trunk(inputs, cache)[:, -1]              # (B, C) predicts the token at `first`

    # 2. The k completions of a prompt continue from copies of its keys and values.
    active = torch.arange(len(texts), device=texts.device)      # numbers of the texts that go on
    x, cache = x.repeat_interleave(k, 0), rows_of_cache(cache, active // k)

    # 3. Go from position to position: read, draw, ask the world, drop the texts that have ended.
    n_read = first                              # positions that have been read
    table = []
    for at in range(first, task.length):
        is_empty = texts[active, at] == empty                                   # (active,)
        if is_empty.any():                      # some text has no token here yet
            if n_read < at:                     # catch up: one token, or more after a world's words
                x = policy.trunk(texts[active, n_read:at], cache)[:, -1]        # (active, C)
                n_read = at
            drawing = active[is_empty]
            token = sample(policy.logits(x[is_empty]), 1, greedy)[:, 0]         # (drawing,)
            texts[drawing, at] = token
            table.append(torch.stack((drawing, torch.full_like(drawing, at))))
            end[drawing[token == task.tok.eos]] = at + 1
            if task.reply:
                asking = drawing[end[drawing] > at + 1]     # they have not ended
                ask_world(task, prompts.record[asking // k], texts, end, asking, at + 1)
        is_active = end[active] > at + 1                                        # (active,)
        if not is_active.any():
            break
        if not is_active.all():
            active, cache = active[is_active], rows_of_cache(cache, is_active)
    text_of, position = torch.cat(table, 1)                                     # (M,) each
    rows, inverse = unique_rows(texts)          # equal texts are one view, to save time
    return Rollout(prompts, k, texts, texts[rows], text_of, position, inverse[text_of])


def rows_of_cache(cache, rows):
    """Return a cache with these texts (indices or bool) of another one."""
    return {layer: kv[:, rows] for layer, kv in cache.items()}


# ---- text again ----------------------------------------------------------------------------------
def columns_of(rollout, inner=columns_of):
    """A prompt ends where its completion begins. Two columns more: 'sampled', the completion
    without the words of a world, and 'ended', whether the policy has ended it."""
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


include('plugins/world.py')         # ask_world()
