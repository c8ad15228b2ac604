# Tells true equations from false ones, and nobody has shown it a false one: it has read 9,023 true
# equations, and finds everything else improbable.

kind = 'causal'

batch_size = 128
learning_rate = 1e-2
max_iters = 500
