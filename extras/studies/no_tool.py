# nobody computes for the policy
# python train_grpo.py config/grpo_tools.py extras/studies/no_tool.py

from data.tools import answer_of as _answer_of

out_dir = 'out-no-tool'


def reply(completion):
    return ('', True) if _answer_of(completion) else None
