"""Show what one step does to the k completions of a single prompt, in numbers that can be checked
with a pocket calculator. Another --seed shows another prompt. With a single prompt,
adv_norm = 'batch' is the same as 'std'.

    python -m extras.explain config/grpo_config.py --group_size=6 --adv_norm=none"""
import copy
import sys

import train_grpo as run
from common import configure, init_device, use_threads
from data.dataset import Dataset
from judge import Scorer, show_groups
from model import load_network, make_optimizers
from pretrain import find_networks

TERMS = {'pg_loss': "minus ratio x advantage; every ratio is 1 before the update",
         'kl_penalty': "kl_beta x KL; the policy has not moved yet, so it is 0",
         'entropy_bonus': "minus entropy_coef x entropy",
         'loss': "their sum"}


def set_up(words):
    """Apply arguments of a command line to the knobs of train_grpo. Return the policy, its
    reference, a Scorer and a Dataset. A notebook can call it, too. Knobs keep their values until a
    later call changes them."""
    _, functions = configure(vars(run), words)
    device = init_device(run.device, run.dtype)
    names = [run.generator, run.judge] if 'judge' in run.rewards else [run.generator]
    (policy, tok), *judges = [load_network(path, device)
                              for path in find_networks(names, run.dataset)]
    use_threads(policy)
    reference = copy.deepcopy(policy).requires_grad_(False)
    judge = judges[0][0].requires_grad_(False) if judges else None
    if run.chat_template:
        tok.encode_prompt = tok.encode_chat
    data = Dataset(run.dataset, tok, policy.block_size, run.max_new_tokens)
    scorer = Scorer(judge, data.verify, functions, policy, reference, run.temperature)
    return policy, reference, scorer, data


if __name__ == "__main__":
    one_prompt = ['--batch_size=1', '--gradient_accumulation_steps=1', '--inner_updates=1',
                  '--mini_batches=1']
    # These flags come last and win, so the command cannot ask for two prompts.
    policy, reference, scorer, data = set_up(sys.argv[1:] + one_prompt)
    optimizers = make_optimizers(policy, run.optimizer, run.learning_rate, run.weight_decay,
                                 run.beta1, run.beta2)
    prompts = run.get_prompts(data, 0, policy.causal)
    [(_, r)], scores, advantages, metrics = run.take_step(
        policy, reference, optimizers, scorer, prompts, run.learning_rate, run.kl_beta)

    # The log-probability of each completion, before the update (by the reference) and after it.
    before, after = [r.sum(run.logp_of(network, r, r.kept)[r.distribution_of, r.actions])[None]
                     for network in (reference, policy)]                    # (1, k) each
    show_groups('step 0', r, {'reward': scores['reward'], 'advantage': advantages, 'log p': before,
                              'after': after, 'change': after - before}, max_rows=r.k)
    print("advantage: see group_advantages() in train_grpo.py; log p, after: "
          "of the completion, before and after this update. Completions share tokens, so one can "
          "rise because others do that begin like it.")
    print(f"mean reward {scores['reward'].mean():.3f}, std {scores['reward'].std():.3f}; "
          f"adv_norm = '{run.adv_norm}'\n")
    print(f"Each term is a sum over {len(r.actions)} sampled tokens, divided by "
          f"{run.loss_divisor(r)}: loss_norm = '{run.loss_norm}'")
    for name, words in TERMS.items():
        print(f"{name:14} {metrics[name].item():9.5f}   {words}")
    grad_norm = metrics['grad_norm'].item()
    print(f"{'grad_norm':14} {grad_norm:9.5f}   the length of the loss's gradient")
