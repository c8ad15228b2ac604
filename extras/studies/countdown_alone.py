# countdown without a world: the policy writes `<`, `>` and `=` itself
# python train_grpo.py config/grpo_countdown.py extras/studies/countdown_alone.py
# verify: start 34.0 % (greedy 23.0, pass@4 74.6), policy 61.2 % (seed 1). With the network of
# grpo_countdown 18.9 -> 49.7 %; if it writes the value of each attempt (3+5*6=33) 1.4 -> 34.7 %

generator = 'extras/studies/generator_countdown.py'

learning_rate = 3e-3

out_dir = 'out-alone'


def reply():
    return None
