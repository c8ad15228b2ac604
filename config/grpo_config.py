# the defaults of train_grpo.py: blanks of equations, a likelihood judge. python train_grpo.py does
# the same. verify: start 42.9 to 45.0 %, line to beat 45.5 to 48.2 %, policy 95.9 to 97.4 %
# (docs/results.md: three generators, two precisions, two seeds)
