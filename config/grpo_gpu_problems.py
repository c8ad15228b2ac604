# grade school math on a GPU of 24 GB, with a model of half a billion weights; torchrun shares the
# micro-steps. Only the first steps were tried, on a CPU, with a small random Llama. So first:
# python -m extras.gpu_check
#
#     hf download Qwen/Qwen2.5-0.5B-Instruct --local-dir out/qwen
#     python - <<'END'
#     import datasets, json
#     with open('gsm8k.jsonl', 'w') as file:
#         for row in datasets.load_dataset('openai/gsm8k', 'main', split='train'):
#             line = {'prompt': row['question'], 'answer': row['answer']}
#             file.write(json.dumps(line) + '\n')
#     END
#     python train_grpo.py config/grpo_gpu_problems.py

from data.problems import verify as _verify

dataset = 'gsm8k.jsonl'
blank_kind = 'answer'
chat_template = True
max_new_tokens = 256
rewards = {'right': 1.0}

generator = 'out/qwen'

group_size = 8
batch_size = 2              # 16 completions at a time
gradient_accumulation_steps = 8

kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 1e-6
min_lr = 1e-7
max_iters = 500

out_dir = 'out-gsm8k'
log_interval = 1
eval_interval = 50
eval_prompts = 100
dtype = 'bfloat16'


def right(completions, answer):
    """Return 1.0 for each completion whose last number is that of the answer, `... #### 72`."""
    return list(map(_verify, completions, answer))
