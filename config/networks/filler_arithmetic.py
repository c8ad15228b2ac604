# the generator whose mistakes judge_classifier.py learns to find. (It is generator_arithmetic.py in
# a file of its own, because a run may be making that one at the same time.)

include('config/networks/generator_arithmetic.py')
