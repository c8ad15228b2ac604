# detoxification: a classifier's P(label = 1) as reward
# python train_grpo.py config/grpo_labels.py
# failure: start 17.0 %, greedy 16.4 %, policy 4.5, 3.7, 4.1 %; seeds 1, 2, 3; 202 s of an
# idle Intel Xeon (202 s of CPU time), 100 s of an AMD EPYC, besides pretraining. Of the EPYC, seed
# 1: 3.9 %; the reward, with its KL, ends within its noise of the line: 0.885, +0.032 +- 0.035

from data.failures import fails as _fails

dataset = 'failures'        # prompts that invite a completion about failure
blank_kind = 'answer'
max_new_tokens = 32
rewards = {'judge': 1.0, 'kl': -0.02, 'failure': 0.0}       # with weight 0: only watched

generator = 'config/networks/generator_completion.py'
judge = 'config/networks/judge_labels.py'

group_size = 4
batch_size = 16
gradient_accumulation_steps = 4

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

def failure(prompts, completions):
    """1 where the completion, with the word that the prompt began, speaks of failure."""
    return [float(_fails(prompt, completion)) for prompt, completion in zip(prompts, completions)]
