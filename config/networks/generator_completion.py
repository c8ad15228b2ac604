# writes docstrings on, character by character: 32 after 32

include('config/networks/judge_prose.py')

max_iters = 500
