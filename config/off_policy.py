# The reference samples, and the policy learns from its texts. This is what happens in systems that
# sample with old weights, or with a program that is not the learner. The ratios do not know
# about it: they compare the policy with itself before the step. config/papers/tis.py corrects it.
#
#     python train_grpo.py config/grpo_think.py config/off_policy.py --reference=generator
import copy

from plumbing.process import expect


def collect(networks, task, step, *more, inner=collect):
    """Let the reference act instead of the policy."""
    expect(networks.reference, "config/off_policy.py needs --reference=generator")
    sampling = copy.copy(networks)
    sampling.policy = networks.reference
    return inner(sampling, task, step, *more)
