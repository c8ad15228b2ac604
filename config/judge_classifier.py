# tells real equations from those that the generator completed; AUC 0.84 of true against false

kind = 'classifier'

max_iters = 1200

eval_interval = 400
