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
from plumbing.process import Mistake, expect
from plumbing.rewards import call_each


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
