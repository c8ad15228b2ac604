"""Test a task before anything is trained: its texts, verify(), rewards, and its world.
extras/check.py calls it. All is asked as if tokens were characters, written from left to right.

Whatever completes a text is a game, a list of (character, whether the policy wrote it). Without a
world all is the policy's."""
import os
import random
from pathlib import Path
from types import SimpleNamespace

import torch

import train_grpo as grpo
from dataset import BLANK, read_texts, replay, written_by_policy
from judge import Scorer, verifier_of
from run.command import configure, said_by

N = 1000                    # so many texts, at most, and games


def is_task(word):
    """Return whether a word of the command line is a file of texts, and no config file."""
    if word.endswith('.py') and os.path.isfile(word):
        return 'def texts(' in Path(word).read_text('utf-8')
    return word.endswith(('.jsonl', '.txt'))


def check_task(words):
    """Yield lines about the task, the world and the rewards in words of a command line, each as
    (whether it is well, a sentence); None: only to read. Without any of these there are none."""
    tasks = [word for word in words if is_task(word)]
    config, functions = configure(dict(vars(grpo)), [word for word in words if word not in tasks])
    names = [name for name in config['rewards'] if name in functions]
    if not tasks and not names and 'reply' not in functions:
        return
    dataset = [config['dataset'], *tasks][-1]
    train, held_out, verify, reply = read_texts(dataset)
    yield None, f"{dataset}: {len(train)} texts to learn from, {len(held_out)} held out"
    verify = verifier_of(dataset, train + held_out, verify)
    names = ['verify'] * bool(verify) + names
    assert names, "there is neither verify(), nor an answer, nor a reward: what is right?"
    scorer = Scorer(None, verify, functions)
    reply = functions.get('reply', reply)
    rng = random.Random(0)
    texts = [text for part in (train, held_out) for text in rng.sample(part, min(N, len(part)))]
    texts = [{'prompt': '', 'answer': text} if type(text) is str else text for text in texts]
    own = [replay(reply, text | {'completion': text['answer'] or ''}) for text in texts]
    short = [game[:rng.randrange(max(1, len(game)))] for game in own]
    cases = {
        'their own answers': [case_of(text, game) for text, game in zip(texts, own)],
        'nothing': [case_of(text, []) for text in texts],
        'answers cut short': [case_of(text, game, False) for text, game in zip(texts, short)],
    }
    if reply:
        yield from check_world(reply, scorer, names[0], texts, own, cases, rng)
    for name in names:
        means = {kind: score(scorer, name, some).nanmean() for kind, some in cases.items()}
        assert not all(map(torch.isnan, means.values())), (
            f"{name} returns None for all: has it a `return`?")
        is_nothing_right = name == 'verify' and means['nothing'] > 0
        shown = ', '.join(f'{mean:.3g} for {kind}' for kind, mean in means.items())
        yield not is_nothing_right, f"{name}, mean: {shown}"


def case_of(text, game, ended=True):
    """Return what functions can ask for, see Rollout.cases(), if a game completes a text."""
    completion = ''.join(char for char, _ in game)
    # with marked blanks a completion is the whole text
    start = '' if BLANK in text['prompt'] else text['prompt']
    return text | {'completion': completion, 'text': start + completion, 'ended': ended,
                   'sampled': written_by_policy(game)}


def score(scorer, name, cases):
    """Return what a reward says of cases, a tensor (N,). NaN is None."""
    r = SimpleNamespace(cases=lambda: cases, sequences=torch.empty(0),
                        prompts=SimpleNamespace(k=len(cases)))
    return scorer.score([name], r)[name][0]


# ---- a world -------------------------------------------------------------------------------------


def check_world(reply, scorer, name, texts, own, cases, rng):
    """Yield lines about a world: who writes what, random play, nonsense, chance, forging; and add
    the cases of these games. name: verify, or a reward; 1 is a game that is won."""
    room = 1 + max(map(len, own))               # the end is a token, too
    asked = []                                  # (a case, what the world said, whether it ended)

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
                asked.append((case, said, is_over))
                game += [(char, False) for char in said]
                if is_over or len(game) >= room:
                    return game[:room]
        return game

    def play_all(kind, starts, words):
        """Go on from starts [(text, game)], and add the cases. Return the games, and who won."""
        games = [play(text, start, sorted(words)) for text, start in starts]
        cases[kind] = [case_of(text, game, len(game) < room)
                       for (text, _), game in zip(starts, games)]
        return games, score(scorer, name, cases[kind]) == 1

    mine = {char for game in own for char, is_mine in game if is_mine}
    worlds = {char for game in own for char, is_mine in game if not is_mine}
    only = worlds - mine
    yield None, f"the policy writes {show(mine)}, only the world {show(only)}"
    starts = [(text, []) for text in rng.choices(texts, k=N)]
    games, won = play_all('random play', starts, mine)
    lengths = list(map(len, games))
    yield None, (f"random play: {100 * won.float().mean():.1f} % won, {min(lengths)} to "
                 f"{max(lengths)} characters, mean {sum(lengths) / N:.1f}")
    examples = [''.join(char for char, _ in game) for game, is_won in zip(games, won) if is_won]
    yield None, f"won by chance, to see whether they keep your rules: {examples[:3]}"
    play_all('nonsense', starts, mine | worlds)
    known = {char for text in texts for char in text['prompt'] + (text['answer'] or '')}
    unknown = {char for _, said, _ in asked for char in said} - known
    yield not unknown, f"it answers nonsense; in no text stands what it says of {show(unknown)}"
    is_same = all(said_by(reply, case, str) == (said, is_over)
                  for case, said, is_over in asked[::-9])
    yield is_same, "it says the same twice: it has no state, and no chance of its own"
    # What is lost so far goes on with what only the world says.
    starts = [(text, game[:rng.randrange(len(game))]) for (text, _), game in zip(starts, games)]
    lost = score(scorer, name, [case_of(*start) for start in starts]) != 1
    starts = [start for start, is_lost in zip(starts, lost) if is_lost]
    words = only | {said for _, said, _ in asked if set(said) <= only} | {''}
    _, forged = play_all('words of the world', starts, words)
    yield not forged.any(), (
        f"{forged.sum()} of {len(starts)} lost games are won if the policy writes {show(only)} "
        "itself"
        + (": FORGED, let verify() look at `sampled`" if forged.any() else ""))


def show(letters):
    return repr(''.join(sorted(letters)))
