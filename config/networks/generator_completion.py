# Continues docstrings, character by character: it reads 32 characters and writes the next 32.

include('config/networks/judge_prose.py')

max_iters = 500
