"""Test a task before anything is trained: its texts, verify(), rewards, and its world.
extras/check.py calls it. All is asked as if tokens were characters, written from left to right.

Whatever completes a text is a game, a list of (character, whether the policy wrote it). Without a
world all is the policy's."""
import difflib
import inspect
import itertools
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import torch

import train_grpo as grpo
from dataset import BLANK, path_of, read_texts, replay, written_by_policy
from judge import PLURAL, Scorer
from run.command import configure, said_by

N = 1000                    # so many texts, at most, and games


def is_task(word):
    """Return whether a word of the command line is a file of texts, and no config file."""
    if word.endswith('.py') and os.path.isfile(word):
        source = Path(word).read_text('utf-8')
        return re.search(r'^(def texts\(|texts = |from .* import .*\btexts\b)', source, re.M)
    return word.endswith(('.jsonl', '.txt')) and not word.startswith('-')


def check_task(words):
    """Yield lines about the task, the world and the rewards in words of a command line, each as
    (mark, sentence): 'ok', 'NOT', '??' if only you know, '' to read. Without any of these there are
    none."""
    tasks = [word for word in words if is_task(word)]
    others = [word for word in words if word not in tasks]
    config, functions = configure(dict(vars(grpo)), others)
    names = [name for name in config['rewards'] if name in functions]
    dataset = config['dataset']
    if tasks:
        dataset = tasks[-1]
    if dataset == grpo.DEFAULTS['dataset'] and not names and 'reply' not in functions:
        return
    train, held_out, verify, reply = read_texts(dataset)
    yield '', f"{dataset}: {len(train)} texts to learn from, {len(held_out)} held out"
    source = Path(path_of(dataset)).read_text('utf-8-sig')
    for name in re.findall(r'^def (\w+)', source, re.MULTILINE):
        meant = difflib.get_close_matches(name, ('verify', 'reply', 'texts'), cutoff=0.75)
        if meant and source.count(name) == 1 and f'def {meant[0]}(' not in source:
            yield 'NOT', f"{name}() is called by nobody; meant {meant[0]}()?"
    reply = functions.get('reply', reply)
    if verify:
        names.insert(0, 'verify')
    assert names, "there is neither verify(), nor an answer, nor a reward: what is right?"
    scorer = Scorer(None, verify, functions)
    rng = random.Random(0)
    texts = some_of(train, rng) + some_of(held_out, rng)
    games = [replay(reply, text | {'completion': text['answer'] or ''}) for text in texts]
    cases = cases_of_texts(texts, games, rng)
    columns = set().union(*cases['nothing'])
    if reply:
        yield from unknown_names('reply', reply, columns - {'ended', 'sampled'})
        yield from check_world(reply, scorer, names, texts, games, cases, rng)
    for name in names:
        known = columns
        if name in functions:
            known = {PLURAL.get(column, column) for column in columns}
        yield from unknown_names(name, functions.get(name, verify), known)
        yield means_of(name, scorer, cases)


def unknown_names(name, function, known):
    """Yield lines about parameters of a function for which there is never anything but their
    default: there are only known names."""
    for parameter in inspect.signature(function).parameters.values():
        is_one = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_one and parameter.name not in known:
            yield '??', (f"{name}() asks for `{parameter.name}`, and always gets its default: "
                         f"there are {sorted(known)}")


def some_of(texts, rng):
    """Return N texts, or all of them, as records."""
    texts = rng.sample(texts, min(N, len(texts)))
    if type(texts[0]) is str:
        texts = [{'prompt': '', 'answer': text} for text in texts]
    return texts


def cases_of_texts(texts, games, rng):
    """Return {kind: cases} of texts that are completed by their own games, by nothing, and by a
    part of these games."""
    whole, nothing, short = [], [], []
    for text, game in zip(texts, games):
        whole.append(case_of(text, game))
        nothing.append(case_of(text, []))
        n = rng.randrange(max(1, len(game)))
        short.append(case_of(text, game[:n], ended=False))
    return {'their own answers': whole, 'nothing': nothing, 'answers cut short': short}


def means_of(name, scorer, cases):
    """Return the line about a reward: its means over cases {kind: cases}."""
    scores = {kind: score(scorer, name, values) for kind, values in cases.items() if values}
    means = {kind: values.nanmean() for kind, values in scores.items()}
    assert not all(map(torch.isnan, means.values())), (
        f"{name} returns None for all: has it a `return`?")
    shown = ', '.join(f'{mean:.3g} for {kind}' for kind, mean in means.items())
    line = f"{name}, mean: {shown}"
    answers, nothing = means['their own answers'], means['nothing']
    missing = sum(int(values.isnan().sum()) for values in scores.values())
    if missing:
        return '??', f"{line}; it returns None {missing} times: has it a `return` everywhere?"
    if name == 'verify' and nothing > 0:
        return 'NOT', f"{line}; is nothing an answer?"
    if name == 'verify' and answers == 0:
        return '??', f"{line}; no text is right, so none shows what is: is that meant?"
    if max(nothing, means['answers cut short']) >= answers:
        return '??', f"{line}; nothing, or a part, is worth as much as their answers"
    return 'ok', line


def case_of(text, game, ended=True):
    """Return what functions can ask for, see Rollout.cases(), if a game completes a text."""
    completion = ''.join(char for char, _ in game)
    # with marked blanks a completion is the whole text
    start = '' if BLANK in text['prompt'] else text['prompt']
    return text | {'completion': completion, 'text': start + completion, 'ended': ended,
                   'sampled': written_by_policy(game)}


def score(scorer, name, cases):
    """Return what a reward says of cases, a tensor (N,). NaN is None."""
    if not cases:
        return torch.empty(0)
    r = SimpleNamespace(cases=lambda: cases, sequences=torch.empty(0),
                        prompts=SimpleNamespace(k=len(cases)))
    return scorer.score([name], r)[name][0]


# ---- a world -------------------------------------------------------------------------------------


def check_world(reply, scorer, names, texts, games, cases, rng):
    """Yield lines about a world: who writes what, random play, nonsense, chance, forging; and add
    the cases of these games. games: those of the texts. names: verify, or a reward, of which 1 is a
    game that is won; and other rewards."""
    name = names[0]
    room = 1 + max(map(len, games))             # the end is a token, too
    replies = []                                # (a case, what the world said, whether it ended)

    def play(text, start, words):
        """Return a game that goes on from a start, in a row with room for so many characters. The
        policy draws from words, of which '' is the end."""
        game = list(start)
        while word := rng.choice(words):
            for char in word:
                game.append((char, True))
                if len(game) == room:           # the world is not asked when the row is full
                    return game
                case = case_of(text, game)
                said, is_over = said_by(reply, case, str)
                replies.append((case, said, is_over))
                game += [(char, False) for char in said]
                if is_over or len(game) >= room:
                    return game[:room]
        return game

    def play_all(kind, starts, words):
        """Go on from starts [(text, game)], and add the cases. Return the games, and who won."""
        words = sorted(words)
        results = []
        cases[kind] = []
        for text, start in starts:
            game = play(text, start, words)
            results.append(game)
            cases[kind].append(case_of(text, game, ended=len(game) < room))
        return results, score(scorer, name, cases[kind]) == 1

    letters = {True: set(), False: set()}       # of the policy, of the world
    for game in games:
        for char, is_mine in game:
            letters[is_mine].add(char)
    mine, worlds = letters[True], letters[False]
    only = worlds - mine
    yield '', f"the policy writes {show(mine)}, only the world {show(only)}"

    starts = [(text, []) for text in rng.choices(texts, k=N)]
    random_games, won = play_all('random play', starts, mine)
    lengths = list(map(len, random_games))
    share = 100 * won.float().mean()
    yield '', (f"random play: {share:.1f} % won, {min(lengths)} to {max(lengths)} characters, "
                 f"mean {sum(lengths) / N:.1f}")
    winners = [case['completion'] for case, is_won in zip(cases['random play'], won) if is_won]
    yield '', f"won by chance, to see whether they keep your rules: {winners[:3]}"

    play_all('nonsense', starts, mine | worlds)
    known = set()
    for text in texts:
        known.update(text['prompt'], text['answer'] or '')
    unknown = set().union(*(said for _, said, _ in replies)) - known
    if unknown:
        yield 'NOT', (f"to nonsense it says {show(unknown)}, which is in no text, so a run would "
                      "end there: use letters of the texts, or return ('', True)")
    else:
        yield 'ok', "it answers nonsense in letters of the texts"
    is_same = all(said_by(reply, case, str) == (said, is_over)
                  for case, said, is_over in replies[::-9])
    if is_same:
        yield 'ok', "it says the same twice: it has no state, and no chance of its own"
    else:
        yield 'NOT', "asked twice it says something else: it has a state, or chance of its own"

    # What is lost so far goes on with what only the world says.
    starts = [(text, game[:rng.randrange(len(game))])
              for (text, _), game in zip(starts, random_games)]
    is_lost = score(scorer, name, [case_of(*start) for start in starts]) != 1
    starts = list(itertools.compress(starts, is_lost))
    before = [case_of(*start) for start in starts]
    words = {said for _, said, _ in replies if only.issuperset(said)}
    _, is_forged = play_all('words of the world', starts, only | words | {''})
    sentence = (f"{is_forged.sum()} of {len(starts)} lost games are won if the policy writes "
                f"{show(only)} itself")
    if is_forged.any():
        yield 'NOT', sentence + ": FORGED; `sampled` is without the words of the world"
    else:
        yield 'ok', sentence
    for other in names[1:]:
        gains = score(scorer, other, cases['words of the world']) - score(scorer, other, before)
        if (gains > 0).any():
            yield '??', (f"{other} rises in {(gains > 0).sum()} of them: can the policy write what "
                         "it pays for itself?")


def show(letters):
    return repr(''.join(sorted(letters)))
