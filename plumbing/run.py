"""What happens around the steps of train_grpo.py: a Run opens networks and dataset, or resumes;
saves; evaluates; logs; and stops."""
import itertools
import shlex
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

from plumbing import devices, report
from plumbing.configurator import PATHS, checked, knobs_of
from plumbing.datasets import open_data
from plumbing.networks import (
    file_of,
    load_network,  # noqa: F401  for train_grpo.py
    open_networks,  # noqa: F401  the same
    open_recipe,
    paths_of,
    words_of,
)
from plumbing.optim import make_optimizers  # noqa: F401  for train_grpo.py
from plumbing.process import Mistake, Stopped, bar, expect, say, stop
from plumbing.returns import check_scores
from plumbing.rewards import try_rewards
from plumbing.run_folder import (
    SCRIPTS,
    RunFolder,  # noqa: F401  for train_grpo.py
    check_shared,
    check_state,
)
from tasks import BLANK, make_tokenizer


class Globals:
    """The globals of a script as attributes: grpo.max_iters, grpo.evaluate(). A knob or a function
    that changes later is seen, too."""

    def __init__(self, script):
        self.__dict__ = script


def try_task(grpo, data):
    """If the generator is a recipe whose network has to be made, make a Task first, with characters
    for tokens. What does not fit is then refused in a second, and not after minutes."""
    recipe, *words = words_of(grpo.generator) or ['']
    if not recipe.endswith('.py') or Path(file_of(grpo.generator, grpo.dataset)).exists():
        return
    script, _ = open_recipe(recipe, grpo.dataset, words)
    chars = {char for record in data.train + data.held_out
             for char in record['prompt'] + record['answer']}
    # Other tokenizers know these two.
    chars -= {BLANK, '\n'} if script['tokenizer'] == 'char' else set()
    try:
        tok = make_tokenizer('char', ''.join(sorted(chars)))
        task = grpo.Task(data, tok, grpo.blank_kind, None)
    except (AttributeError, TypeError):         # the Task of a config file may need a network
        return
    task.check_kind(SimpleNamespace(kind=script['kind']))


def open_task(script, device, files):
    """Return the networks and the Task of a run. pretrain.py makes networks that are missing.

    script: the globals of train_grpo.py. files {path: file}: a resumed run opens the checkpoints
    with which it began, even if a recipe has changed since. Else it is {}."""
    grpo = Globals(script)
    data = open_data(script)
    expect(not data.reply or grpo.Task.kind == 'causal', "the dataset is a world, with a reply(): "
           "it needs the word plugins/causal.py")
    if devices.N_RANKS > 1:             # before a network is opened, which looks at them, too
        devices.check_same('dataset', (data.train, data.held_out))
    try_rewards(script, data)
    if grpo.generator not in files:
        try_task(grpo, data)
    networks = grpo.open_networks(paths_of(script), grpo.dataset, device, files, grpo.load_network)
    task = grpo.Task(data, networks.policy.tok, grpo.blank_kind, networks.policy)
    with torch.random.fork_rng(devices=[]), patch.dict(grpo.state):
        held_out = task.prompts('val', 2, grpo.blank_low, grpo.blank_high)
    expect((held_out.record >= task.n_train).all(), "Task.prompts('val', ...) returned records to "
           "learn from: an evaluation would know them")
    room = script.get('max_new_tokens') or task.length          # of plugins/causal.py
    n_cut = sum(len(row.whole) - row.n_prompt > room for row in task.rows)
    if n_cut:
        say(f"max_new_tokens = {room}: {n_cut} of {len(task.rows)} answers are longer")
    for role in 'policy', 'judge', 'reference':
        network = getattr(networks, role)
        if network:
            devices.set_precision(network, grpo.dtype)
            length = getattr(network, 'block_size', task.length)        # LoRA's reference has none
            expect(length >= task.length, f"the {role} can read {length} tokens, and texts have up "
                   f"to {task.length}: pretrain.py --block_size={task.length}")
    return networks, task


class Run:
    """A run. script: the globals of train_grpo.py, in which config files may have replaced
    functions.

    networks            policy, judge and reference, of which the policy learns
    task                the dataset, in the ids of the policy
    optimizers          of the policy
    line_to_beat (P,)   what the policy scored on each held-out prompt at the first evaluation,
                        sampled or greedy, whichever is better. At its end a run says whether it
                        beats this."""

    def __init__(self, script):
        self.grpo = grpo = Globals(script)
        self.knobs = knobs_of(script)
        expect(grpo.gradient_accumulation_steps % devices.N_RANKS == 0, (
            f"gradient_accumulation_steps = {grpo.gradient_accumulation_steps}: expected a "
            f"multiple of the number of ranks, {devices.N_RANKS}"))
        device = devices.init_device(grpo.device, grpo.dtype)
        if devices.N_RANKS > 1:
            files = {*SCRIPTS, *map(str, grpo.include.__self__.sources())}
            devices.check_same('code or config files', [
                (Path(x).name, Path(x).read_bytes()) for x in sorted(files)])
            devices.check_same('knobs', [(name, bool(x) if name in PATHS else x)
                                         for name, x in self.knobs.items()])
        self.folder = grpo.RunFolder(grpo.out_dir, self.knobs)
        self.folder.sources = grpo.include.__self__.sources()
        self.networks, self.task = open_task(script, device, self.folder.saved['files'])
        grpo.state.update(self.folder.state)    # first, because make_optimizers() may read it
        optimizers = grpo.make_optimizers(self.networks.policy, grpo.optimizer)
        expect(isinstance(optimizers, list | tuple), "make_optimizers() returned a "
               f"{type(optimizers).__name__}: expected a list of optimizers")
        self.optimizers = [*optimizers]
        theirs = {id(p) for x in optimizers for group in x.param_groups for p in group['params']}
        expect(any(id(p) in theirs for p in self.networks.policy.parameters()), (
            "make_optimizers() returned optimizers of other weights than the policy's"))
        self.first_step, self.line_to_beat = self.folder.begin(
            self.networks, self.optimizers, self.task.records)
        self.reference_sum = None
        stop.listen()

    def steps(self):
        """Yield the number of each step. Before it, save and evaluate if it is time."""
        grpo = self.grpo
        steps = itertools.count(self.first_step)        # a config file may change max_iters
        for step in bar(steps, 'steps', initial=self.first_step, total=grpo.max_iters):
            self.check_knobs()                  # a config file may change them in each step
            is_end = step >= grpo.max_iters
            is_stopped = devices.sum_over_ranks(int(stop.is_asked)) > 0         # on any rank
            if is_stopped and not stop.is_asked:
                say('another rank was asked to stop')
            # A resumed run has no line to beat if a knob has changed: it is set before more steps.
            is_due = is_end or step % grpo.eval_interval == 0 or self.line_to_beat is None
            if is_due or is_stopped:            # save first: a resumed run evaluates once more
                self.check_reference()
                self.folder.save(self.networks, self.optimizers, step, self.line_to_beat,
                                 grpo.state)
            if is_stopped or (is_due and not self.evaluate(step, is_end)) or is_end:
                return
            yield step

    def check_reference(self):
        """Say that checkpoints do not have a reference that has changed since the start, unless a
        config file keeps it in `state`."""
        reference = self.networks.reference
        if not isinstance(reference, torch.nn.Module):          # LoRA's is the policy without LoRA
            return
        now = float(sum(p.abs().sum() for p in reference.parameters()))
        if self.reference_sum is None:
            self.reference_sum = now
        if now != self.reference_sum and not self.grpo.state:
            say('the reference has changed, and checkpoints do not save it: a resumed run begins '
                'with the first one. Keep its weights in `state` (docs/run.md, renew.py)')
            self.reference_sum = now

    def check_knobs(self):
        """Refuse a knob that is out of range by now, such as a temperature of 0."""
        for name, was in self.knobs.items():
            now = getattr(self.grpo, name, was)
            if isinstance(now, int | float | str):          # and no tensor of a config file
                if isinstance(now, type(was)):
                    now = type(was)(now)                    # numpy's float64 is a float
                checked(name, now, type(was), min(was, 0) if type(was) in (int, float) else 0)

    def evaluate(self, step, is_end):
        """Evaluate the policy, and log the result. Return False if a signal came meanwhile."""
        grpo, before = self.grpo, knobs_of(self.grpo.__dict__)
        try:
            result = grpo.evaluate(self.networks, self.task, step)
        except Stopped:
            return False
        after = knobs_of(grpo.__dict__)
        for name in before.keys() & after.keys() - {'max_iters'}:       # a file may end the run
            if after[name] != before[name]:
                say(f"evaluate() has changed {name}, and the steps after it have it, too: "
                    f"{before[name]} -> {after[name]}")
        if not isinstance(result, tuple) or len(result) != 3:
            raise Mistake(f"evaluate() returned {result!r:.80}: expected samples, their scores, "
                          "and scores of greedy completions")
        samples, scores, greedy = result
        if not isinstance(samples, list) or not all(isinstance(x, dict) for x in samples):
            raise Mistake(f"evaluate() returned samples {samples!r:.80}: expected a list of dicts")
        check_scores('as its second result evaluate', scores)
        check_scores('as its third result evaluate', greedy, 1)
        # The first evaluation sets the line to beat.
        self.line_to_beat, result = report.against_line(scores, greedy, self.line_to_beat,
                                                        grpo.rewards)
        self.folder.log(step, result)
        self.folder.log_samples(step, samples)
        if is_end:
            say(report.verdict_of(result, step))
            say(f"python sample.py {shlex.quote(grpo.out_dir)} shows what it writes")
        return True

    def log(self, step, metrics, scores, began, sampled):
        """Write the metrics of a step, and print them every log_interval steps. began, sampled:
        time.time() at the start of the step, and after collect()."""
        grpo = self.grpo
        if step == self.first_step:     # not at the next save only, which would lose its steps
            check_state(grpo.state)
        check_shared(grpo.state, self.networks.policy)
        expect(isinstance(metrics, dict), f"learn() returned {metrics!r:.80}: expected a dict of "
               "numbers")
        metrics = metrics | report.metrics_of_step(scores, grpo.rewards, began, sampled)
        hidden = {'lr', 'grad_norm'}
        if grpo.epochs * grpo.mini_batches == 1:        # then these are 0
            hidden |= {'clip_frac', 'kl_old'}
        self.folder.log(step, metrics, step % grpo.log_interval == 0, hidden)
