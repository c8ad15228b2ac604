# SmolLM2-135M answers word problems in sentences. At first it rambles until it is cut off, and its
# last number is seldom the sum. It learns to say the sum and to stop. Look at `mean_tokens`, which
# falls, and at what it says: python sample.py out-problems --num_samples=3
# python -m extras.smollm2 out/smollm2 && python train_grpo.py config/grpo_problems.py
# verify: start 5.5 %, greedy 9.4 %, policy 89.1 % (right and stopped by itself: 2.1 -> 89.1 %),
# seed 1, float32, 70 minutes on a core that other programs shared, up to 9 GB. Earlier versions in
# bfloat16: 85.4, 79.9, 89.3 %, seeds 1, 2, 3

from data.problems import verify as _verify

include('plugins/causal.py')
include('plugins/hf.py')

dataset = 'problems'
chat_template = True
max_new_tokens = 32         # an answer needs far fewer, but at first it rambles
rewards = {'verify': 1.0, 'stops': 0.5}     # verify: the last number is right

generator = 'out/smollm2'

group_size = 8
batch_size = 4              # 9 GB of memory
gradient_accumulation_steps = 4

temperature = 0.7

kl_beta = 0.0               # a verifier leaves little to fool, and a reference costs a pass
entropy_coef = 0.0
learning_rate = 2e-5
min_lr = 2e-6
warmup_iters = 3
max_iters = 32

out_dir = 'out-problems'
log_interval = 4
eval_interval = 8
eval_prompts = 96


def stops(completions, answer, ended):
    """Return 1 where the last number is right and the policy has stopped by itself."""
    return [float(end) * _verify(*texts) for end, *texts in zip(ended, completions, answer)]
