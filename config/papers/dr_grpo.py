# Dr. GRPO, arXiv:2503.20783, 3.2: no std in the advantage, no length of the completion in the loss,
# no KL
# It takes eight updates of a step: --batch_size=8 --gradient_accumulation_steps=8 --mini_batches=8
# and a learning_rate that is so many times smaller

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0
