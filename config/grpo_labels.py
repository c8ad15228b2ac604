# detoxification: a classifier's P(label = 1) as reward
# python train_grpo.py config/grpo_labels.py
# failure: start 12.5 %, greedy 11.7, policy 3.1, 3.5, 3.5 %; seeds 1, 2, 3, bfloat16, one thread,
# three minutes. The reward, with its KL, ends within its noise of the line to beat: 0.899, policy
# 0.910, 0.907, 0.912

from data.failures import fails as _fails

include('plugins/causal.py')

dataset = 'failures'        # prompts that invite a completion about failure
max_new_tokens = 32
rewards = {'judge': 1.0, 'log_ratio': -0.02, 'failure': 0.0}        # weight 0: only watched

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
    """log policy - log reference of each completion, in nats. Its mean is the KL. As a loss it
    would be useless ('k1'), but the mean of reward * gradient of log policy is that of
    the KL."""
    stats = token_stats(networks.policy, rollout, networks.reference)
    return rollout.per_text(stats.logp - stats.logp_ref)


def failure(prompts, completions):
    """1 where the completion, with the word that the prompt began, speaks of failure."""
    return [float(_fails(prompt, completion)) for prompt, completion in zip(prompts, completions)]
