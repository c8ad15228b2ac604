# tells real equations from those that the generator completed; AUC 0.84 of true against false
kind = 'classifier'
max_iters, eval_interval = 1200, 400
