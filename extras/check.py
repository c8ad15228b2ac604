"""Try a task, a world, a reward or a paper with toy networks in two steps, before anything is
trained:

    python -m extras.check examples/worlds/lock.py
    python -m extras.check config/grpo_pairs.py mine.py --dataset=mine.jsonl
    python -m extras.check config/grpo_think.py config/papers/gspo.py

The words are for train_grpo.py. If the first word is the file of a dataset, an experiment that
fits it is taken. `bad` is a mistake, and then the exit code is 1. All else is for you to judge.
Tokens are characters here, so plugins/hf.py has no part in it."""
import copy
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, '.')         # for `python extras/check.py`

import torch
from torch.nn.utils import parameters_to_vector

import pretrain
import train_grpo as grpo
from model import GPT
from plumbing import devices
from plumbing.configurator import configure
from plumbing.datasets import is_answer, is_dataset, load
from plumbing.networks import paths_of, save_network
from plumbing.process import expect
from plumbing.run import open_task
from plumbing.run_folder import check_state
from tasks import BLANK

TOY = ['--group_size=6', '--batch_size=4', '--gradient_accumulation_steps=1', '--mini_batches=1',
       '--eval_prompts=8', '--dtype=float64', '--device=cpu']


def is_data(word):
    """Is a word the file of a dataset?"""
    path = Path(word)
    if word.startswith('--') or not path.is_file():
        return False
    return path.suffix in ('.jsonl', '.txt') or is_dataset(path)


def words_for(words):
    """Return words for train_grpo.py. A dataset becomes --dataset=FILE, and, if it is the first
    word, an experiment that fits it comes before it."""
    first, *_ = words
    expect(sum(map(is_data, words)) < 2, "expected one dataset")
    words = [f'--dataset={word}' if is_data(word) else word for word in words]
    if not is_data(first):
        return words
    data = load(first)
    name = 'pairs' if data.verify is is_answer else 'checker'
    if data.reply:
        name = 'world'
    elif BLANK in data.train[0]['prompt']:
        name = 'config'
        words.append('--blank_kind=answer')
    experiment = f'config/grpo_{name}.py'
    return words if experiment in words else [experiment, *words]


def open_toy(folder):
    """Make tiny, random networks in a folder. Return them, and the task."""
    pretrain.dataset = grpo.dataset
    torch.manual_seed(0)
    _, task = pretrain.new_network()            # for its characters
    files = {}
    for role, path in paths_of(vars(grpo)).items():
        kind = 'causal' if role == 'judge' else grpo.Task.kind
        network = GPT(task.tok.vocab_size, task.length + 512, 1, 2, 8, kind)
        network.tok = task.tok
        for p in network.parameters():          # of a new one the logits are 0
            torch.nn.init.normal_(p, std=0.5)
        files[path] = f'{folder}/{role}.pt'
        save_network(files[path], network)
    return open_task(vars(grpo), torch.device('cpu'), files)


# ---- rewards -------------------------------------------------------------------------------------
# Shapes in comments: N texts, k for each prompt, T positions.


def rollout_of(prompts, k, texts):
    """Return the Rollout of texts (N, T). Its rows are the tokens that the policy would have
    written there."""
    text_of, position = is_sampled(prompts, k, texts).nonzero(as_tuple=True)
    return grpo.Rollout(prompts, k, texts, texts, text_of, position, text_of)


def is_sampled(prompts, k, texts):
    """Return which positions (N, T) of texts the policy would have written: all blanks, except the
    words of a world, which is asked again, position by position."""
    task, is_text = prompts.task, texts != prompts.task.tok.pad
    is_ours = prompts.blank.repeat_interleave(k, 0) & is_text
    for at in range(texts.size(1) - 1 if task.reply else 0):
        asked = (is_ours[:, at] & is_text[:, at + 1]).nonzero()[:, 0]
        replayed = texts.clone()
        replayed[:, at + 1:] = task.tok.pad
        grpo.ask_world(task, prompts.record[asked // k], replayed, is_text.sum(1), asked, at + 1)
        is_ours[:, at + 1:] &= replayed[:, at + 1:] == task.tok.pad
    return is_ours


def show_rewards(networks, weights, task):
    """Score texts of the data, and others that a toy has written for their prompts. Then score two
    of these and two of those for each prompt, in two orders."""
    def scores_of(k, texts):
        devices.set_seed(0)
        with patch.dict(grpo.state):            # a reward may change it
            rollout = rollout_of(prompts, k, texts)
            return grpo.score(rollout, networks, weights, 0, 'val')

    names = [name for name in weights if name != 'judge']       # which is a toy
    prompts = task.prompts('val', 99, grpo.blank_low, grpo.blank_high)
    written = grpo.complete(networks.policy, prompts, 4).texts
    for whose, texts in ('the data', prompts.whole), ('a toy', written[::4]):
        scores, example = scores_of(1, texts), task.tok.decode(texts[0].tolist())
        for name in names:
            print(f'{name} is {scores[name].mean():.3f} for texts of {whose}, such as {example!r}')
            if name == 'verify' and whose == 'the data':
                print('    (the share of right answers in what pretraining imitates)')
    written[::4] = written[1::4] = prompts.whole
    first = scores_of(4, written)
    same = torch.arange(4)
    for order, change in (
            (same, "is called again: random numbers need a seed, what lasts must be in `state`"),
            (same.flip(0), "gets the completions of a prompt in another order")):
        again = scores_of(4, written.unflatten(0, (-1, 4))[:, order].flatten(0, 1))
        for name in names:
            if not again[name].allclose(first[name][:, order]):
                print(f'{name} is another one when it {change}')


# ---- two steps -----------------------------------------------------------------------------------
def weights_of(network):
    """Return all weights of a network in a row, or None if there is no network."""
    return parameters_to_vector(network.parameters()).detach().clone() if network else None


def take_step(networks, task, optimizers, number, seed):
    """Take a step. Return the mean of advantage * change of log-probability."""
    rollouts, _ = grpo.collect(networks, task, number)
    rollout = rollouts[0]
    before = grpo.log_probs_of(networks.policy, rollout)
    devices.set_seed(seed)
    grpo.learn(networks, optimizers, rollouts, 1e-3)
    gain = rollout.advantage * (grpo.log_probs_of(networks.policy, rollout) - before)
    return gain.nanmean().item()


def take_plain_step(networks, task, optimizers):
    """Take step 0 without KL and entropy bonus, which may pull the other way. Return the same."""
    coefs = grpo.kl_beta, grpo.entropy_coef
    grpo.kl_beta = grpo.entropy_coef = 0.0
    gain = take_step(networks, task, optimizers, 0, 0)
    grpo.kl_beta, grpo.entropy_coef = coefs
    return gain


def take_steps(networks, task):
    """Take two steps, and the second one again, like a run that is resumed. Return what is bad."""
    def score(*words, inner=grpo.score):
        # Most rewards of a toy would be equal, so they are random, but equal for one prompt.
        return {name: torch.rand_like(x) * torch.arange(len(x))[:, None]
                for name, x in inner(*words).items()}

    grpo.score = score
    bad = []
    frozen = {role: weights_of(getattr(networks, role)) for role in ('reference', 'judge')}
    optimizers = grpo.make_optimizers(networks.policy, grpo.optimizer)
    grpo.evaluate(networks, task, 0)
    gain = take_plain_step(networks, task, optimizers)
    meaning = 'above 0: good completions become more likely'
    if not gain > 0:
        meaning = 'not above 0: no completion becomes more or less likely'
    if gain < 0:
        meaning = 'below 0: good completions become less likely'
        bad.append("good completions become less likely: is a sign wrong?")
    print(f"advantage * change of log-probability in a step, mean: {gain:.2g} ({meaning})")
    check_state(grpo.state)
    kept = copy.deepcopy((networks, optimizers))
    state = copy.deepcopy(grpo.state)           # apart: a checkpoint shares no tensors with weights
    take_step(networks, task, optimizers, 1, 1)
    for role, before in frozen.items():
        if before is not None and not before.equal(weights_of(getattr(networks, role))):
            bad.append(f"the {role} has changed, and no checkpoint keeps it")
    once = weights_of(networks.policy)
    networks, optimizers = kept
    grpo.state.clear()
    grpo.state.update(state)
    take_step(networks, task, optimizers, 1, 2)
    if not once.equal(weights_of(networks.policy)):
        bad.append("a step that is taken again from a checkpoint is another one: what lasts must "
                   "be in `state`, and random numbers of learn() need a seed")
    return bad


PRINT = "import sys; from plumbing.datasets import load; print(ascii(load(sys.argv[1])[:2]))"


def main():
    words = sys.argv[1:]
    if not words or {'-h', '--help'} & {*words}:
        sys.exit(__doc__)
    configure(vars(grpo), words_for(words) + TOY)
    expect('Pretrained' not in vars(grpo), "plugins/hf.py: extras.check has characters for tokens. "
           "Leave the plugin out, or try a run with --max_iters=2")
    devices.init_device('cpu', 'float64')
    with tempfile.TemporaryDirectory() as folder:
        networks, task = open_toy(folder)
        print(f"{task.n_train} records to learn from; {task.kind = }, {task.blank_kind = }")
        weights = ({'verify': 1.0} if task.verify else {}) | grpo.rewards
        show_rewards(networks, weights, task)
        bad = take_steps(networks, task)
    again = subprocess.check_output([sys.executable, '-c', PRINT, grpo.dataset], text=True)
    if not again.endswith(f'{load(grpo.dataset)[:2]!a}\n'):
        bad.append("texts() returns other records in another process: random numbers need a seed, "
                   "and no set gives an order")
    if bad:
        sys.exit('\n'.join(f'bad: {x}' for x in bad))


if __name__ == '__main__':
    main()
