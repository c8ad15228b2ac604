"""Look at a run: held-out prompts, or one of your own, before and after GRPO, with scores. Or look
at a generator alone.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7' --group_size=16
    python sample.py out-small small.py                     # with the rewards that small.py defines
    python sample.py out/generator_think-*.pt               # a generator alone

The knobs are those of the run; other config files and flags change them. Functions are not in the
checkpoint: name their file again. A typed prompt should look like those of the dataset. It has no
answer, so of the rewards only built-in ones are shown. The last lines are of all held-out prompts,
as on the console of the run. A generator alone is shown as `before`; it has no reward, so its
reward is `distinct`."""
import shlex
import sys

import train_grpo as grpo
from judge import BUILT_IN
from pretrain import load_network
from run.command import configure
from run.folder import begin, checksums, load_checkpoint
from run.machine import print_line
from run.progress import Progress
from run.samples import samples_of, show_group

# ---- knobs, changed by --name=value; others are those of train_grpo.py ---------------------------
prompt = ''                 # your own prompt; fill: '_' is a blank; causal: it is continued
columns = {}                # of its record, for a world, such as {'secret': 'h'}
num_samples = 10            # held-out prompts to show


def open_run(path='out-grpo', *words):
    """Return the Run of a run's folder or of a checkpoint, and its networks {label: network}: the
    policy 'before' and 'after' the run; of a generator alone there is no 'after'. words: config
    files and flags. Those of the run's own command only bring its functions; others change knobs.
    Its texts and functions are those of the run, or it is refused.
    """
    checkpoint = load_checkpoint(path)
    of_run = checkpoint.get('words', [])        # if its rewards or its texts are functions
    programs = {word for word in of_run if word.endswith('.py')}
    assert programs <= {*words}, (
        "no program that a checkpoint names is run by itself; expected the words of its run, and "
        f"others behind them: {shlex.join([str(path), *of_run])}")
    files = checkpoint['config'].get('files', {})
    assert checksums(files) == files, f"one of {[*files]} was edited since this run"
    # a generator alone has no reward
    knobs = {'generator': str(path), 'rewards': {'distinct': 1.0}} | checkpoint['config']
    # it may have run on another machine; and nothing is made, neither a folder nor a network
    knobs |= {'device': 'auto', 'compile': False, 'out_dir': '', 'resume': True}
    knobs = {name: value for name, value in knobs.items()
             if name in grpo.DEFAULTS and not str(value).endswith('.py')}
    # The words of the run come first: a file can change what a knob is so far, and has done so.
    new = [word for word in words if word not in of_run]
    run = grpo.set_up([*of_run, knobs, *new])
    networks = {'before': run.policy}
    if 'progress' in checkpoint:                # of a run
        networks['after'], _ = load_network(path, run.policy.device)
        if grpo.fill_order == 'learned':        # the run may have had another order
            networks['after'].decide_order(grpo.n_fill_steps)
    return run, networks


if __name__ == "__main__":
    begin()
    # Flags of ours, and words for open_run().
    words = sys.argv[1:]
    ours = [word for word in words
            if word.startswith(('--prompt', '--columns', '--num_samples', '--help', '-h'))]
    configure(globals(), ours)
    run, networks = open_run(*[word for word in words if word not in ours])

    # the same held-out prompts and random numbers as in the run, so the numbers agree with it
    prompts = grpo.held_out_prompts(run.data)[:num_samples]
    names = [*grpo.rewards]
    if run.scorer.verify:
        names = ['verify', *names]
    if prompt:
        prompts = run.data.typed_prompt(prompt, grpo.group_size, grpo.seed, columns)
        names = [name for name in names if name in BUILT_IN]
    for b in range(len(prompts)):
        for label, network in networks.items():
            # one prompt at a time, so that its completions before and after stand together
            r = grpo.act(network, prompts[[b]])
            if 'kl' in names:
                r.stats_old = grpo.stats_now(r, network, run.scorer.reference)
            show_group(label, samples_of(r, run.scorer.score(names, r)))
        print()
    if not prompt:
        progress = Progress(run.goal)
        for step, (label, network) in enumerate(networks.items()):
            progress.add(step, grpo.evaluate(network, run))
            print_line(label, progress.numbers(grpo.rewards))
