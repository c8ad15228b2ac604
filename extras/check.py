"""Try a task, a world, a reward or a paper with toy networks in two steps, before anything is
trained:

    python -m extras.check examples/worlds/lock.py
    python -m extras.check small.py
    python -m extras.check config/grpo_think.py config/papers/gspo.py

The words are those of train_grpo.py. The file of a dataset stands for --dataset=FILE, and without
an experiment it gets one that fits. `bad` is a mistake, and then the exit code is 1. All else is
for you to judge. Tokens are characters here, so plugins/hf.py has no part in it."""
import copy
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn.utils import parameters_to_vector

import pretrain
import train_grpo as grpo
from model import GPT
from plumbing import devices
from plumbing.configurator import configure
from plumbing.datasets import is_answer, load
from plumbing.networks import paths_of, save_network
from tasks import BLANK

TOY = ['--group_size=6', '--batch_size=4', '--gradient_accumulation_steps=1', '--mini_batches=1',
       '--eval_prompts=8', '--dtype=float64']


def words_for(words):
    """Return words for train_grpo.py: --dataset=FILE for a dataset, and, if this is the first word,
    an experiment."""
    for i, word in enumerate(words):            # co_names: names outside of functions
        if word.endswith('.jsonl') or word.endswith('.py') and (
                'texts' in compile(Path(word).read_text('utf-8'), word, 'exec').co_names):
            words[i] = f'--dataset={word}'
    if not words[0].startswith('--dataset='):
        return words
    data = load(words[0].removeprefix('--dataset='))
    name = 'pairs' if data.verify is is_answer else 'checker'
    if BLANK in data.train[0]['prompt']:
        name = 'config'
        words.append('--blank_kind=answer')
    return [f"config/grpo_{'world' if data.reply else name}.py", *words]


def open_toy(folder):
    """Make tiny, random networks in a folder. Return them, and the task."""
    pretrain.dataset = grpo.dataset
    torch.manual_seed(0)
    _, task = pretrain.new_network()            # for its characters
    paths = {}
    for role, path in paths_of(vars(grpo)).items():
        kind = 'causal' if role == 'judge' else grpo.Task.kind
        network = GPT(task.tok.vocab_size, task.length + 512, 1, 2, 8, kind)
        network.tok = task.tok
        for p in network.parameters():          # of a new one the logits are 0
            torch.nn.init.normal_(p, std=0.5)
        paths[path] = f'{folder}/{role}.pt'
        save_network(paths[path], network)
    return grpo.open_task(torch.device('cpu'), paths)


# ---- rewards -------------------------------------------------------------------------------------
def rollout_of(prompts, k, texts):
    """Return the Rollout of texts (N, T), k for each prompt. Its rows are the tokens of blanks, but
    for the words of a world, which is asked again."""
    task, rows = prompts.task, []
    for n, text in enumerate(texts.tolist()):
        blanks = prompts.blank[n // k].nonzero()[:, 0].tolist()
        left = [place for place in blanks if text[place] != task.tok.pad]
        while left:
            place, *left = left
            rows.append((n, place))
            if task.reply and left:
                _, lost = grpo.replies(task, prompts.record[[n // k]], texts[[n], :place + 1],
                                       torch.tensor([len(left)]))
                left = left[lost:]
    text_of, place = torch.tensor(rows).T
    return grpo.Rollout(prompts, k, texts, texts, text_of, place, texts[text_of, place], text_of)


def show_rewards(networks, weights, task):
    """Score texts of the data, and others that a toy has written for their prompts. Then score two
    of these and two of those for each prompt, in two orders."""
    def scores_of(k, texts):
        devices.set_seed(0)
        with patch.dict(grpo.state):            # a reward may change it
            return grpo.score(rollout_of(r.prompts, k, texts), networks, weights, 0, 'val')

    r = grpo.complete(networks.policy, task.prompts('val', 99, grpo.blank_low, grpo.blank_high), 4)
    for whose, texts in ('the data', r.prompts.tokens), ('a toy', r.texts[::4]):
        scores, example = scores_of(1, texts), task.tok.decode(texts[0].tolist())
        for name in weights:
            print(f'{name} is {scores[name].mean():.3f} for texts of {whose}, such as {example!r}')
    r.texts[::4] = r.texts[1::4] = r.prompts.tokens
    first = scores_of(4, r.texts)
    same = torch.arange(4)
    for order, what in (
            (same, "is called again: random numbers need a seed, what lasts must be in `state`"),
            (same.flip(0), "gets the completions of a prompt in another order")):
        again = scores_of(4, r.texts.unflatten(0, (-1, 4))[:, order].flatten(0, 1))
        for name in weights:
            if not again[name].allclose(first[name][:, order]):
                print(f'{name} is another one when it {what}')


# ---- two steps -----------------------------------------------------------------------------------
def take_step(networks, task, optimizers, number, seed):
    """Take a step. Return the weights, and the mean of advantage * change of log-probability."""
    rollouts, _ = grpo.collect(networks, task, number)
    r = rollouts[0]
    before = grpo.log_probs_of(networks.policy, r)
    devices.set_seed(seed)
    grpo.learn(networks, optimizers, rollouts, 1e-3)
    gain = r.advantage * (grpo.log_probs_of(networks.policy, r) - before)
    return parameters_to_vector(networks.policy.parameters()), gain.nanmean()


def is_the_same_again(networks, task, path):
    """Take two steps, and the second one again, as a run that is resumed does. Is it the same?"""
    def score(*words, inner=grpo.score):
        # Most rewards of a toy would be equal, so they are random. Those of one prompt are equal.
        return {name: torch.rand_like(x) * torch.arange(len(x))[:, None]
                for name, x in inner(*words).items()}

    grpo.score = score
    optimizers = grpo.make_optimizers(networks.policy, grpo.optimizer)
    grpo.evaluate(networks, task, 0)
    _, gain = take_step(networks, task, optimizers, 0, 0)
    print(f"advantage * change of log-probability in a step, mean: {gain:.2g} (above 0: it makes "
          "good completions likelier)")
    torch.save(grpo.state, path)
    kept = copy.deepcopy((networks, optimizers))
    one, _ = take_step(networks, task, optimizers, 1, 1)
    grpo.state.clear()          # it may have numbers, texts, tensors, lists and dicts alone
    grpo.state.update(torch.load(path, weights_only=True))
    networks, optimizers = kept
    other, _ = take_step(networks, task, optimizers, 1, 2)
    return one.equal(other)


PRINT = "import sys; from plumbing.datasets import load; print(ascii(load(sys.argv[1])[:2]))"


def main():
    if not sys.argv[1:] or '--help' in sys.argv:
        sys.exit(__doc__)
    words, known = words_for(sys.argv[1:]), {*vars(grpo)}
    configure(vars(grpo), words + TOY)
    devices.init_device('cpu', 'float64')
    with tempfile.TemporaryDirectory() as folder:
        networks, task = open_toy(folder)
        print(f"{task.n_train} records to learn from; {task.kind = }, {task.blank_kind = }")
        for name in vars(grpo).keys() - known - grpo.rewards.keys() - {
                'verify', 'reply', 'masks'}:
            if getattr(vars(grpo)[name], '__code__', main.__code__).co_filename in words:
                print(f"{name}() replaces no function and is no reward: who calls it?")
        weights = ({'verify': 1.0} if task.verify else {}) | grpo.rewards
        weights.pop('judge', None)              # a toy
        show_rewards(networks, weights, task)
        again = subprocess.check_output([sys.executable, '-c', PRINT, grpo.dataset], text=True)
        assert again.endswith(f'{load(grpo.dataset)[:2]!a}\n'), (
            "bad: texts() returns other records in another process: random numbers need a seed, "
            "and no set gives an order")
        assert is_the_same_again(networks, task, f'{folder}/state.pt'), (
            "bad: a step that is taken again from a checkpoint is another one: what lasts must be "
            "in `state`, and random numbers of learn() need a seed")


if __name__ == '__main__':
    main()
