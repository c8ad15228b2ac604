"""Does a run fool its judge? Print, for the start and the policy, how well the judge tells right
completions from wrong ones: the share of pairs, one right and one wrong, in which it scores the
right one higher. At 0.5 it cannot tell them apart.

    python -m extras.auc out-grpo"""
import torch

import train_grpo as grpo
from run.command import words_of
from sample import open_run


def auc(scores, labels):
    """Return P(score of a 1 > score of a 0) + half of the ties, of scores with labels bool, tensors
    of one shape; 0.5 if all labels are equal."""
    zeros = scores[~labels].sort().values
    ones = scores[labels]
    n_below = torch.searchsorted(zeros, ones)
    n_not_above = torch.searchsorted(zeros, ones, right=True)       # ties count, too
    share = (n_below + n_not_above) / (2 * len(zeros))
    return share.mean().nan_to_num(0.5).item()


if __name__ == "__main__":
    for folder in words_of(__doc__) or ['out-grpo']:
        run, networks = open_run(folder)
        assert run.scorer.judge, f"the rewards of {folder} have no judge"
        prompts = grpo.held_out_prompts(run.data)
        for label, network in networks.items():
            names = [*grpo.rewards, 'judge', 'verify']
            _, scores = grpo.act_and_score(network, run.scorer, prompts, names)
            is_right = scores['verify'] == 1
            print(f"{folder}, {label}: {auc(scores['judge'], is_right):.3f} "
                  f"({is_right.float().mean():.0%} of the completions are right)")
