dataset = 'capitals.jsonl'
rewards = {'names_it': 1.0}
out_dir = 'out-capitals'

def names_it(completions, answer):
    return [float(text in completion) for completion, text in zip(completions, answer)]
