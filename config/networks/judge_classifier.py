# A classifier that tells real texts from texts that the generator has filled. It is a judge that
# can be fooled, because it knows only the mistakes which the generator made before GRPO. Its score
# rises, and verify falls, unless a KL keeps the policy near the generator.
#
#     python train_grpo.py --judge=config/networks/judge_classifier.py --kl_beta=0
#
# score 0.37 -> 0.63, 0.62, 0.62, verify 43.1 -> 15.6, 45.1, 13.3 % (seeds 1, 2, 3, float32)
# With --kl_beta=0.5 verify ends at 46.3, 47.0, 47.4 %
# On another processor without a KL: score 0.50 -> 0.53, verify 44.6 -> 1.8, 3.0, 1.8 %

import functools

include('config/networks/classifier.py')

FILLER = 'config/networks/generator_arithmetic.py'

batch_size = 128            # real texts, and as many filled ones
max_iters = 400             # stopped early, because a better classifier is harder to fool


@functools.cache
def _filler(device):                            # grpo and networks are names of pretrain.py
    files = {'policy': FILLER}
    return networks.open_networks(files, dataset, device, {}, networks.load_network).policy


def labelled(prompts):
    filled = grpo.complete(_filler(prompts.whole.device), prompts, 1).texts
    labels = torch.ones(2 * len(filled), device=filled.device)
    labels[len(filled):] = 0
    return torch.cat((prompts.whole, filled)), labels
