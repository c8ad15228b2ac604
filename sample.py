"""Look at a run: held-out prompts, or one of your own, before and after GRPO, with scores. Or look
at a generator alone.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7' --group_size=16
    python sample.py out-mine mine.py                       # with the rewards that mine.py defines
    python sample.py out/generator_arithmetic.pt

The knobs are those of the run, unless a flag sets them. Of a config file, only its functions are
used, as rewards. Functions never come from the checkpoint, so it cannot run code of its own. The
numbers at the end are those that the run itself prints."""
import sys

import train_grpo as run
from common import configure, init_device, print_help, print_line, use_threads
from data.dataset import Dataset, prompts_of_text
from judge import Scorer, n_parameters, show_groups
from model import load_checkpoint, load_network

# ---- knobs, changed by --name=value --------------------------------------------------------------
prompt = ''                 # your own prompt; fill: '_' is a blank; causal: it is continued
num_samples = 10            # held-out prompts to show

if __name__ == "__main__":
    words = sys.argv[1:]
    if '--help' in words or '-h' in words:
        print_help(globals())
    path = 'out-grpo'
    if words and not words[0].startswith('-'):
        path = words.pop(0)

    # The functions of train_grpo.py read its globals, so the knobs of the checkpoint go there.
    checkpoint = load_checkpoint(path)
    vars(run).update(prompt=prompt, num_samples=num_samples, rewards={})
    _, functions = configure(vars(run), [word for word in words if not word.startswith('-')])
    # A generator alone has the objective of pretrain.py, which configure() would refuse.
    vars(run).update(checkpoint['config'], objective='ppo')
    configure(vars(run), [word for word in words if word.startswith('-')])
    assert '--out_dir' not in ' '.join(words), f"expected: python sample.py {run.out_dir}"
    device = init_device(run.device, run.dtype)

    # the networks; the checkpoint of a run has the paths of its reference and of its judge, if any
    policy, tok = load_network(path, device)
    use_threads(policy)
    names = zip(('reference', 'judge'), checkpoint.get('paths', []))
    networks = {label: load_network(name, device)[0] for label, name in names}
    judge = networks.pop('judge', None)
    networks['policy'] = policy
    if run.chat_template:
        tok.encode_prompt = tok.encode_chat
    data = Dataset(run.dataset, tok, policy.block_size, run.max_new_tokens)

    # verify and distinct are shown even if the run does not reward them. Functions come from the
    # config files of this command, not from the checkpoint, which may be somebody else's.
    checkers = {'verify': data.verify} | functions
    weights = {'verify': 0.0, 'distinct': 0.0} | run.rewards
    for name in weights.keys() - Scorer.BUILT_IN:
        if not checkers.get(name) or run.prompt and n_parameters(checkers[name]) > 2:
            print(f"not shown: {name}, which needs its config file, or an answer to compare with")
            del weights[name]
    run.rewards = weights
    scorers = {label: Scorer(judge, data.verify, functions, network, networks.get('reference'),
                             run.temperature) for label, network in networks.items()}
    # A generator alone has the default blanks, which only a fill network can fill.
    if policy.causal and run.blank_kind == 'random':
        has_answers = data.answer_starts['val'][0] < data.block_size
        run.blank_kind = 'answer' if has_answers else 'suffix'

    # the same held-out prompts and random numbers as in the run, so the numbers agree with it
    held_out = run.get_prompts(data, 0, policy.causal, 'val')
    prompts = held_out[:run.num_samples]
    if run.prompt:
        prompts = prompts_of_text(run.prompt, run.get_prompts(data, 0, policy.causal),
                                  policy.causal, run.max_new_tokens)
    for b in range(len(prompts)):
        for label, network in networks.items():
            r = run.rollout(network, prompts[[b]])
            show_groups(label, r, scorers[label].score(run.rewards, r), n_groups=1)
    if run.prompt:
        sys.exit()
    print("means over the held-out prompts; the greedy score of a reference is the line to beat:")
    for label, network in networks.items():
        means = run.evaluate(network, scorers[label], held_out, 'reward')
        print_line(label, {name: means[name] for name in means
                           if name.removesuffix('_greedy') in run.rewards})
