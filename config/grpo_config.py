# the defaults of train_grpo.py: blanks of equations, a likelihood judge. python train_grpo.py does
# the same. verify: start 42.3 to 44.3 %, line to beat 44.1 to 47.3 %, policy 94.1 to 97.1 %
# (docs/results.md: three generators, two precisions, two seeds)
