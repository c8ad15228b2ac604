"""Look at a run: held-out prompts, or one of your own, before and after GRPO, with scores. Or look
at a generator alone.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7' --group_size=16
    python sample.py out-mine mine.py                       # with the rewards that mine.py defines
    python sample.py out/generator_think-*.pt               # a generator alone

The knobs are those of the run; other config files and flags change them. Functions are not in the
checkpoint: name their file again. A typed prompt has no answer, so rewards that ask for one are not
shown. It should look like those of the dataset: no reward says that it does not. The last lines are
means over all held-out prompts; the run's log has more numbers (docs/manual.md). A generator alone
is shown as `before`; it has no reward, so its reward is `distinct`."""
import os
import shlex
import sys

import train_grpo as grpo
from run.command import configure, fail
from run.folder import load_checkpoint
from run.machine import print_line
from run.networks import load_network
from run.progress import group_of, show_group

# ---- knobs, changed by --name=value; others are those of train_grpo.py ---------------------------
prompt = ''                 # your own prompt; fill: '_' is a blank; causal: it is continued
num_samples = 10            # held-out prompts to show


def open_run(path='out-grpo', *words):
    """Return the Run of a run's folder or of a checkpoint, and its networks {label: network}: the
    policy 'before' and 'after' the run; of a generator alone there is no 'after'. words: config
    files and flags. Those of the run's own command only bring its functions; others change knobs.
    """
    checkpoint = load_checkpoint(path)
    # a generator alone has no reward
    knobs = {'generator': str(path), 'rewards': {'distinct': 1.0}, **checkpoint['config'],
             'compile': False, 'device': 'auto',        # it may have run on another machine
             'out_dir': '',                             # no folder, because nothing is written
             'resume': True}                            # no network is made
    for name in ('generator', 'judge'):
        named = str(knobs.get(name))
        if named.endswith('.py'):               # a run keeps the path of what its recipe made
            assert name == 'judge' and 'judge' not in knobs['rewards'], (
                f"{path} names {named} as its {name}; a program that a checkpoint names is not "
                "run, expected a checkpoint or a folder")
            del knobs[name]                     # of a judge that it did not need
    of_run = checkpoint.get('words', [])        # if functions of config files were rewards
    if of_run and not words:
        fail("its rewards are functions, and no file that a checkpoint names is run by itself: "
             f"python sample.py {shlex.join([str(path), *of_run])}")
    knobs = {name: value for name, value in knobs.items() if name in grpo.DEFAULTS}
    # A file can change what a knob is so far, so those of the run must not be read after its knobs.
    # (From another folder they have other paths.)
    again = [word for word in words if os.path.basename(word) in map(os.path.basename, of_run)]
    run = grpo.set_up([*again, knobs, *[word for word in words if word not in again]])
    networks = {'before': run.policy}
    if 'checksums' in checkpoint:               # of a run
        networks['after'], tok = load_network(path, run.policy.device)
        fits = (tok.vocabulary == run.data.tok.vocabulary
                and networks['after'].causal == run.data.causal)
        assert fits, f"{grpo.generator} is no network with which {path} can have begun"
        if grpo.fill_order == 'learned':
            networks['after'].decide_order(grpo.n_fill_steps)
        for name in run.checksums:
            if run.checksums[name] != checkpoint['checksums'].get(name):
                print("made anew since this run, or changed by a flag:", name)
                if name == 'contents of generator':     # then the start is lost
                    del networks['before']
    return run, networks


if __name__ == "__main__":
    # Flags of ours, and words for open_run().
    words = sys.argv[1:]
    flags = ('--prompt', '--num_samples', '--help', '-h')
    ours = [word for word in words if word.startswith(flags)]
    configure(globals(), ours)
    run, networks = open_run(*[word for word in words if word not in ours])

    # the same held-out prompts and random numbers as in the run, so the numbers agree with it
    prompts = grpo.held_out_prompts(run.data)[:num_samples]
    if prompt:
        prompts = run.data.typed_prompt(prompt, grpo.group_size, grpo.seed)
    names = ['verify'] if run.scorer.verify else []
    names += [*grpo.rewards]
    for b in range(len(prompts)):
        for label, network in networks.items():
            # one prompt at a time, so that its completions before and after stand together
            r = grpo.act(network, prompts[[b]])
            if 'kl' in names:
                grpo.look_back(r, network, run.scorer.reference)
            scores = {}
            for name in names:
                try:
                    scores |= run.scorer.score([name], r)
                except AssertionError as e:
                    # A typed prompt has no answer and no columns: leave out what asks for them.
                    if not (prompt and type(e.__cause__) in (TypeError, KeyError)):
                        raise
            show_group(label, group_of(r, scores))
        print()
    if not prompt:
        for label, network in networks.items():
            means, *_ = grpo.evaluate(network, run)
            names = [f'eval/{run.goal}', f'greedy/{run.goal}',
                     *[f'eval/{name}' for name in grpo.rewards], 'eval/verify', 'eval/pass@4',
                     'eval/tokens', 'eval/passes']
            shown = [name for name in dict.fromkeys(names) if name in means][:5]
            print_line(label, [(name, means[name]) for name in shown])
