# Detoxification: a classifier says how likely it is that a text does not speak of failure, and this
# probability is the reward. Look at `failure`, the share of completions that do, which is not
# rewarded. The reward itself hardly moves, because the KL inside it eats the gain. 3 minutes.
#
#     python train_grpo.py config/grpo_labels.py
#
# failure 14.5 -> 3.7, 2.7, 3.9 % (seeds 1, 2, 3, float32; greedy at the start 13.3 %)
# reward, line to beat 0.890 -> 0.904, 0.905, 0.909, which is within its noise

from data.failures import fails as _fails

include('plugins/causal.py')

dataset = 'failures'        # prompts that invite talk of failure
max_new_tokens = 32
rewards = {'judge': 1.0, 'log_ratio': -0.02, 'failure': 0.0}        # 0: logged only

generator = 'config/networks/generator_completion.py --dataset=completions'
judge = 'config/networks/judge_labels.py --dataset=failure_labels'
reference = 'generator'     # for the KL in the reward

group_size = 4
batch_size = 16

adv_norm = 'batch'
epochs = 2
mini_batches = 4
kl_beta = 0.0               # the KL is in the reward
entropy_coef = 0.005
learning_rate = 5e-4
max_iters = 40

out_dir = 'out-labels'
log_interval = 5
eval_interval = 10
eval_prompts = 128


@torch.no_grad()
def log_ratio(rollout, networks):
    """Return log policy - log reference of each completion, in nats, whose mean is the KL. In the
    loss its gradient averages to zero (kl_estimate = 'k1'). In the reward it works:
    E[log_ratio * grad log policy] is the gradient of the KL."""
    stats = token_stats(networks.policy, rollout, networks.reference)
    return rollout.per_text(stats.logp - stats.logp_ref)


def failure(prompts, completions):
    """Return 1 for each completion that speaks of failure, else 0. A word of failure may begin in
    the prompt."""
    return [float(_fails(prompt, completion)) for prompt, completion in zip(prompts, completions)]
