# A world of your own: a file with texts(), verify() and reply(), which answers the policy after
# each token. examples/worlds/ has five of them, in about thirty lines each. Try yours first with
# python -m extras.check FILE.py. A run takes 10 to 110 s, without pretraining.
#
#     python train_grpo.py config/grpo_world.py --dataset=examples/worlds/lock.py
#
# verify, start -> end with seeds 1, 2, 3, float32. The line to beat is the start, and 29.2 for
# hotcold, whose greedy score is higher.
#     lock        42.3 -> 100.0,  99.9, 100.0 %
#     distance    17.9 -> 100.0, 100.0, 100.0 %
#     hotcold     19.5 -> 100.0, 100.0, 100.0 %
#     mastermind  56.6 ->  96.1,  95.7,  95.5 %
#     vending      4.9 -> 100.0,  77.8, 100.0 %
# vending with seed 2 never pays two of the nine prices right, so their groups are dead.

include('plugins/causal.py')

dataset = 'examples/worlds/lock.py'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_world.py'

group_size = 32
batch_size = 32

adv_norm = 'batch'
kl_beta = 0.0
entropy_coef = 0.2          # only while it is needed: see learn()
learning_rate = 6e-3        # if the score falls in the first 50 steps: 4e-3
max_iters = 200

out_dir = 'out-world'
log_interval = 20
eval_interval = 50
eval_prompts = 512          # at most; a world may hold out fewer


def learn(networks, optimizers, rollouts, lr, inner=learn):
    """Give the entropy bonus only if it is needed: while the entropy is below a line, which falls
    from the entropy of the first step to 0 at the end."""
    global entropy_coef
    coef, (first, last, step) = entropy_coef, state.get('entropies', (0.0, 0.0, 0))
    entropy_coef = coef if last < first * (1 - step / max_iters) else 0.0
    numbers = inner(networks, optimizers, rollouts, lr)
    entropy_coef = coef
    entropy = numbers.get('entropy', last)      # absent if all rewards were equal
    state['entropies'] = (first or entropy, entropy, step + 1)
    return numbers
