# 30 million parameters that fill blanks of Shakespeare in GPT-2's byte pairs; also grpo_gpu's judge
dataset, block_size, dtype = 'shakespeare_bpe', 256, 'bfloat16'
blank_kind, blank_low, blank_high = 'span', 0.1, 0.4
n_layer, n_head, n_embd, batch_size, learning_rate, max_iters = 6, 8, 256, 64, 2e-3, 2000
