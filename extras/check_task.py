"""Test a task before anything is trained: its texts, verify(), rewards, and its world.
extras/check.py calls it. All is asked as if tokens were characters, written from left to right.

A line of the screen is (whether it is well, a sentence); None: only to read."""
import ast
import math
import random
from collections import Counter
from pathlib import Path

import train_grpo as grpo
from dataset import BLANK, read_texts, replay, written_by_policy
from judge import LARGEST, Scorer, verifier_of
from run.command import by_name, configure, said_by

N_TEXTS = 1000              # so many texts are tried, at most
N_GAMES = 1000              # of random play


def is_task(word):
    """Return whether a word of the command line is a file of texts, and no config file."""
    if not word.endswith('.py') or not Path(word).is_file():
        return word.endswith(('.jsonl', '.txt'))
    body = ast.parse(Path(word).read_text('utf-8')).body
    return any(getattr(part, 'name', '') == 'texts' for part in body)


def check_task(words):
    """Return the lines about the task, the world and the rewards in words of a command line; none,
    if there is nothing of the kind."""
    tasks = [word for word in words if is_task(word)]
    others = [word for word in words if word not in tasks]
    config, functions = configure(dict(vars(grpo)), others)
    named = [name for name in config['rewards'] if name in functions]
    if not tasks and not named and 'reply' not in functions:
        return []
    dataset = tasks[-1] if tasks else config['dataset']
    train, held_out, verify, reply = read_texts(dataset)
    verify = verifier_of(dataset, train + held_out, verify)
    reply = functions.get('reply', reply)
    texts = some(train) + some(held_out)
    lines = [(None, f"{dataset}: {len(train)} texts to learn from, {len(held_out)} held out")]
    if tasks:
        lines += check_verify(verify, some(train), some(held_out), reply)
    for name in named:
        lines.append(check_reward(name, functions, texts))
    if reply:
        lines += check_world(reply, verify, texts)
    return lines


def some(texts):
    """Return N_TEXTS texts of a list, or all."""
    return random.Random(0).sample(texts, min(N_TEXTS, len(texts)))


def case_of(text, completion=None, **more):
    """Return what functions can ask for, see Rollout.cases(), if this completes a text: its own
    answer, if completion is None."""
    record = {'prompt': '', 'answer': text} if type(text) is str else text
    completion = record['answer'] if completion is None else completion
    # with marked blanks a completion is the whole text, and so is the answer
    is_marked = BLANK in record['prompt'] and len(record['prompt']) == len(record['answer'])
    whole = completion if is_marked else record['prompt'] + completion
    if type(text) is str:
        record = {'prompt': ''}
    return record | {'completion': completion, 'text': whole, 'sampled': completion,
                     'ended': True} | more


def number_of(value):
    """Return a reward as a float, NaN for None. An error says what it is instead."""
    if value is None:
        return math.nan
    assert not isinstance(value, str) and -LARGEST <= value <= LARGEST, (
        f"returns {value!r:.60}: expected a finite number")
    return float(value)


def ask(function, case):
    """Return the number that a function of one case returns; or what is wrong, a string."""
    try:
        return number_of(by_name(function)(case))
    except AssertionError as e:
        return str(e) or repr(e)
    except (Exception, SystemExit) as e:        # a function of the user can raise anything
        return f"raises {e!r:.100}"


# ---- texts and verify() --------------------------------------------------------------------------


def check_verify(verify, train, held_out, reply):
    """Yield lines about a checker: of the texts' own answers, of nothing, of half an answer."""
    def case(text, n=None, **more):             # completed by the first n characters of its answer
        answer = case_of(text)['completion'][:n]
        sampled = written_by_policy(replay(reply, case_of(text, answer)))
        return case_of(text, answer, **{'sampled': sampled, **more})

    if verify is None:
        yield False, "there is neither verify() nor an answer: nothing says what is right"
        return
    for name, texts in (('to learn from', train), ('held out', held_out)):
        values = [ask(verify, case(text)) for text in texts]
        wrong = Counter(value for value in values if type(value) is str)
        if wrong:
            [(sentence, count)] = wrong.most_common(1)
            yield False, f"verify() {sentence}; {count} of {len(texts)} texts {name}"
            return
        if all(map(math.isnan, values)):
            yield False, f"verify() returns None for all texts {name}: has it a `return`?"
            return
        n_right = sum(value == 1 for value in values)
        yield None, f"verify() passes {n_right} of {len(texts)} texts {name} with their own answer"
    for name, part in (('an empty completion', 0), ('a completion cut short', 1)):
        values = []
        for text in train + held_out:
            whole = case_of(text)['completion']
            # a random cut: half of a game is often a game
            kept = random.Random(whole).randrange(1, len(whole)) if part and len(whole) > 1 else 0
            values.append(ask(verify, case(text, kept, ended=not part)))
        wrong = [value for value in values if type(value) is str]
        if wrong:
            yield False, f"verify() of {name} {wrong[0]}"
            continue
        n_right = sum(value == 1 for value in values)
        counts = f"verify() passes {name} for {n_right} of {len(values)} texts"
        yield (None if part else n_right == 0), counts


def check_reward(name, functions, texts):
    """Return the line about a reward of a config file: its values for the answer of a text, for
    half of it, for nothing, and for the answer of another text."""
    text, other = texts[0], texts[-1]
    answer = case_of(text)['completion']
    group = [answer, answer[:len(answer) // 2], '', case_of(other)['completion']]
    cases = [case_of(text, completion) for completion in group]
    try:
        values = Scorer(functions=functions).score_one(name, None, lambda: cases)
        numbers = [number_of(value) for value in values]
    except (Exception, SystemExit) as e:
        said = str(e) if isinstance(e, AssertionError) and str(e) else f"raises {e!r:.100}"
        return False, f"reward {name}: {said}"
    shown = ', '.join(f'{value:.4g} for {completion!r:.40}'
                      for value, completion in zip(numbers, group))
    if all(map(math.isnan, numbers)):
        return False, f"reward {name}: None for each completion: has it a `return`?"
    return (True if len(set(numbers)) > 1 else None), f"reward {name}: {shown}"


# ---- a world -------------------------------------------------------------------------------------


def play(reply, text, draw, room, start=()):
    """Return a game as a list of (character, whether the policy wrote it), as write() in write.py
    plays it in a row with room for so many tokens, from its start on. draw(game): the policy's next
    character, '' for the end."""
    game = list(start)
    while len(game) < room:
        letter = draw(game)
        if letter == '':
            break
        game.append((letter, True))
        if len(game) == room:                   # the world is not asked when the row is full
            break
        said, done = said_by(reply, shown(text, game))
        game += [(char, False) for char in said][:room - len(game)]
        if done:
            break
    return game


def shown(text, game, ended=False):
    """Return the case of a game, see case_of()."""
    return case_of(text, ''.join(char for char, _ in game), ended=ended,
                   sampled=written_by_policy(game))


def check_world(reply, verify, texts):
    """Yield lines about a world: who writes what, random play, nonsense, chance, forging."""
    room = 1 + max(len(text['answer']) for text in texts)       # the end is a token, too
    try:
        games = [(text, replay(reply, case_of(text))) for text in texts]
    except AssertionError as e:
        yield False, f"a prefix of the texts' own answers: {e}"
        return
    n_equal = sum(''.join(char for char, _ in game) == text['answer'] for text, game in games)
    yield (n_equal == len(games),
           f"reply() says what stands in {n_equal} of {len(games)} texts, when they are replayed")
    mine = {char for _, game in games for char in written_by_policy(game)}
    worlds = {char for _, game in games for char, is_mine in game if not is_mine}
    only = ''.join(sorted(worlds - mine))
    yield None, f"the policy writes {''.join(sorted(mine))!r}, only the world {only!r}"

    # Random play, first with the policy's letters, then with all: nonsense.
    rng = random.Random(1)
    played = []
    for name, letters in (('the policy', mine), ('policy and world', mine | worlds)):
        letters = sorted(letters)
        try:
            games = [(text, play(reply, text, lambda game: rng.choice(letters), room))
                     for text in rng.choices(texts, k=N_GAMES)]
        except AssertionError as e:
            yield False, f"random play with the letters of {name}: {e}"
            return
        played += games
        results = [ask(verify, shown(text, game, len(game) < room)) for text, game in games]
        wrong = [result for result in results if type(result) is str]
        if wrong:
            yield False, f"verify() of random play with the letters of {name} {wrong[0]}"
            return
        lengths = [len(game) for _, game in games]
        won = sum(result == 1 for result in results)
        yield None, (f"random play with the letters of {name}: {100 * won / N_GAMES:.1f} % won; "
                     f"{min(lengths)} to {max(lengths)} characters, "
                     f"mean {sum(lengths) / N_GAMES:.1f}")
    cases = [shown(text, game[:n]) for text, game in played[::10]
             for n in range(1, len(game)) if game[n - 1][1]]
    first = [said_by(reply, case) for case in cases]
    again = [said_by(reply, case) for case in cases[::-1]][::-1]
    known = {char for text in texts for char in text['prompt'] + text['answer']}
    unknown = {char for said, _ in first for char in said}
    unknown = ''.join(sorted(unknown - known))
    yield not unknown, ("it answers nonsense, with letters of the texts" if not unknown else
                        f"it says {unknown!r}, which stands in no text")
    yield first == again, ("it says the same twice for the same completion" if first == again else
                           "it says something else when the same completion is asked again: "
                           "it has a state, or chance of its own")
    yield check_forging(reply, verify, played[:N_GAMES], only, room, rng)


def check_forging(reply, verify, played, only, room, rng):
    """Return the line that says whether a policy wins lost games by words that only the world
    writes, and that it writes itself."""
    words = set()                               # what the world says in one go, of these letters
    for _, game in played:
        word = ''
        for char, is_mine in [*game, ('', True)]:
            if not is_mine:
                word += char
            elif word:
                words.add(word)
                word = ''
    words = sorted({word for word in words | set(only) if word and set(word) <= set(only)})
    if not words:
        return None, "the policy writes all letters of the world, too: read verify() for forging"
    n_tried = n_won = 0
    example = ''
    for text, game in played:
        word = rng.choice(words)
        at_end = rng.random() < 0.5             # where no reply can follow
        n = room - len(word) if at_end else rng.randrange(len(game) + 1)
        start = game[:n]
        if len(start) < n or ask(verify, shown(text, start, True)) != 0:
            continue                            # only lost games

        def draw(game, start=start, word=word):
            n = len(written_by_policy(game)) - len(written_by_policy(start))
            return word[n] if n < len(word) else ''

        try:
            forged = play(reply, text, draw, room, start)
        except AssertionError as e:
            return False, f"the world's own words: {e}"
        n_tried += 1
        if ask(verify, shown(text, forged, len(forged) < room)) == 1:
            n_won += 1
            example = example or ''.join(char for char, _ in forged)
    if n_won:
        return False, (f"FORGED: {n_won} of {n_tried} lost games are won if the policy writes "
                       f"{only!r} itself, such as {example!r}: let verify() look at `sampled`")
    return True, f"none of {n_tried} lost games is won if the policy writes {only!r} itself"

