"""Look at a run: held-out prompts, or one of your own, before and after GRPO, with scores. Or look
at a generator alone.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7' --group_size=16
    python sample.py out-mine mine.py                       # with the rewards that mine.py defines
    python sample.py out/generator_think-d32fcbc3.pt        # a generator alone

The knobs are those of the run; config files and flags change them. Functions are not in the
checkpoint: name their file again. A typed prompt has no answer, so rewards that ask for one are not
shown. It should look like those of the dataset: no reward says that it does not. The last lines are
means over all held-out prompts, as in the run's log (docs/manual.md says what they are). A
generator alone is shown as `before`; it has no reward, so its reward is `distinct`."""
import sys

import train_grpo as grpo
from common import configure, print_line
from model import load_checkpoint
from pretrain import load_network
from rollout import show_group

# ---- knobs, changed by --name=value; others are those of train_grpo.py ---------------------------
prompt = ''                 # your own prompt; fill: '_' is a blank; causal: it is continued
num_samples = 10            # held-out prompts to show


def open_run(path='out-grpo', *words):
    """Return the Run of a run's folder or of a checkpoint, and its networks {label: network}: the
    policy 'before' and 'after' the run; of a generator alone there is no 'after'. words: config
    files and flags, which change knobs of the run."""
    checkpoint = load_checkpoint(path)
    # Its knobs become words of a command line. A generator alone has no reward.
    saved = {'generator': path, 'rewards': {'distinct': 1.0}, **checkpoint['config'],
             'compile': False, 'out_dir': '',           # no folder, because nothing is written
             'resume': True}                            # no network is trained
    flags = [f'--{name}={value}' for name, value in saved.items() if name in grpo.DEFAULTS]
    run = grpo.set_up(flags + list(words))
    networks = {'before': run.policy}
    if 'must_match' in checkpoint:              # of a run
        networks['after'], _ = load_network(path, run.policy.device)
        for name in run.checksums:
            if run.checksums[name] != checkpoint['must_match'].get(name):
                print("made anew since this run, or changed by a flag:", name)
                if name == 'generator':         # then the start is lost
                    del networks['before']
    return run, networks


if __name__ == "__main__":
    # Flags of ours, and words for open_run().
    words = sys.argv[1:]
    ours = [word for word in words if word.startswith(('--prompt', '--num_samples', '--help'))]
    configure(globals(), ours)
    run, networks = open_run(*[word for word in words if word not in ours])

    # the same held-out prompts and random numbers as in the run, so the numbers agree with it
    prompts = run.held_out[:num_samples]
    if prompt:
        prompts = run.data.typed_prompt(prompt).prompts('train', 1, grpo.group_size, grpo.seed)
    names = run.scorer.shown_names(grpo.rewards, prompt)
    for b in range(len(prompts)):
        for label, network in networks.items():
            # one prompt at a time, so that its completions before and after stand together
            r = grpo.act(network, prompts[[b]])
            show_group(label, r, run.scorer.score(names, r))
        print()
    if not prompt:
        for label, network in networks.items():
            print_line(label, grpo.evaluate(network, run))
