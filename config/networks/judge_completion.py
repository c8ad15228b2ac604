# Reads docstrings, character by character, in sequences of 64 characters.

include('config/networks/judge_prose.py')
