# nobody computes for the policy of config/grpo_tools.py: add this file behind it

from data.tools import answer_of as _answer_of

out_dir = 'out-no-tool'


def reply(completion):
    return ('', True) if _answer_of(completion) else None
