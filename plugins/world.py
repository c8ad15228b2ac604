"""A world writes into the texts, too. It is a dataset whose function reply() is asked after each
token that the policy draws, and may add words. (The field says environment, or tool.)
plugins/causal.py includes this file.

    python train_grpo.py config/grpo_guess.py

Example: guess the secret letter. The world answers < if the secret comes before the letter, > if it
comes after it, and = if it is the letter; then the game is over. The prompts are `2:` and `13:`,
two completions of each. Brackets mark what the policy draws. Only this has rows in the table: the
policy does not learn to write what the world says.

    position   0  1   2   3   4   5
    text 0     2  :  [h]  <  [d]  >  ...
         1     2  :  [c]  <  [b]  =
         2     1  3   :  [k]  >  [m] ...
         3     1  3   :  [a]  >  [h] ...

This file is executed in the globals of train_grpo.py."""
import torch

from plumbing.process import Mistake, expect
from plumbing.rewards import call_each

expect('max_new_tokens' in globals(), (
    "plugins/world.py is a part of plugins/causal.py: take that"))


def ask_world(task, record, texts, end, asking, at):
    """Let the world write into texts (N, T), from position `at` on, as far as there is room.

    asking: the numbers (n,) of the texts that it may answer. record (n,): the numbers of their
    records. Where the world ends a text, its `end` changes."""
    if len(asking) == 0:
        return
    record = record.tolist()
    written = [task.tok.show(ids[task.rows[i].n_prompt:])
               for i, ids in zip(record, texts[asking, :at].tolist())]
    # reply() has no memory, so equal completions of one record are one case.
    cases = {}                                  # {(record, completion): number of the case}
    case_of = [cases.setdefault(case, len(cases)) for case in zip(record, written)]     # (n,)
    answers = call_each('reply', task.reply, [
        task.records[i] | {'completion': text} for i, text in cases])
    ids, is_end = zip(*[ids_of_reply(task, said, task.records[i], text)
                        for (i, text), said in zip(cases, answers)])
    # Now as tensors: `said` (n, width) are the words of each text, padded, as far as there is room.
    width = min(max(map(len, ids)), task.length - at)
    padded = [row[:width] + [task.tok.pad] * (width - len(row)) for row in ids]
    said = texts.new_tensor(padded).view(len(cases), width)[case_of]
    room = end[asking] - at                                                             # (n,)
    is_cut = torch.arange(width, device=end.device) >= room[:, None]
    texts[asking, at:at + width] = said.masked_fill(is_cut, task.tok.pad)
    length = end.new_tensor([len(row) for row in ids])[case_of].minimum(room)
    is_over = torch.tensor(is_end, device=end.device)[case_of]
    end[asking] = torch.where(is_over, at + length, end[asking])


def ids_of_reply(task, said, record, completion):
    """Return what reply() said, None, a text, or (text, True), as a list of ids and a bool."""
    words, is_end = said if isinstance(said, tuple) and len(said) == 2 else (said, False)
    where = f"{completion!r:.100} of {record!r:.200}"
    expect(isinstance(words, str | None) and isinstance(is_end, bool), (
        f"reply() returned {said!r:.100} to {where}: expected None, a text, or (text, True)"))
    try:
        return task.tok.encode(words or ''), is_end
    except Mistake as e:
        raise Mistake(f"{e}, in what reply() returned to {where}") from None
