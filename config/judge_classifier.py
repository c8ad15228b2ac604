# tells real equations from those that the generator completed; AUC 0.84 of true against false
kind, max_iters, eval_interval = 'classifier', 1200, 400
