# reads docstrings, character by character: sequences of 64

include('config/networks/judge_prose.py')
