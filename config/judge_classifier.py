# tells real equations from those that the generator completed; AUC 0.89 of true against false

kind = 'classifier'

positions = 'learned'

max_iters = 600

eval_interval = 200
