# how many passes does an equation need? Each costs 0.03, and the policy decides in each which
# blanks it fills
# python train_grpo.py extras/studies/grpo_order_cost.py
# verify: start 74.2 %, policy 87.7, 88.8, 89.8 %; passes 2.5 -> 2.3, 2.3, 2.5; seeds 1, 2, 3.
# In two passes from the left, --fill_order=left --n_fill_steps=2: 78.9 -> 87.9, 87.5, 87.3 %

include('plugins/passes.py')

rewards = {'verify': 1.0, 'passes': -0.03}

n_fill_steps = 8
fill_order = 'learned'

adv_norm = 'batch'
kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 2e-3
warmup_iters = 2
max_iters = 100

out_dir = 'out-order-cost'
eval_interval = 50


def passes(r):
    """The passes that filled something. (Each has seen another view.)"""
    n, _ = torch.stack((r.text_of, r.view_of)).unique(dim=1)
    return n.bincount(minlength=len(r.texts))
