# how many samples of a network that writes from left to right are right. A recipe with a stop_at
# includes this

from plumbing.rewards import call_each


def write(network, prompts):
    """Return texts (B, T): what the network writes from the first blanks of prompts on. This is the
    plain loop; complete() of plugins/causal.py does the same, and reads each token once."""
    texts, at = prompts.tokens.clone(), prompts.start                           # (B, T), (B,)
    places = torch.arange(texts.size(1), device=at.device)
    texts[places >= at[:, None]] = network.pad_id
    for place in places:
        due = at == place                       # (B,) the texts that go on here
        if due.any():
            texts[due, place] = 0               # any token: the network looks at what is before it
            logits = network.logits(network.features(texts[due])[:, place])
            token = grpo.sample(logits)[:, 0]
            texts[due, place] = token
            at[due] += token != prompts.task.tok.eos
    return texts


def share_right(network, held_out):
    task = held_out.task
    cases = []
    for i, start, ids in zip(held_out.record, held_out.start, write(network, held_out).tolist()):
        whole = task.records[i]['prompt'] + task.records[i]['answer']
        cases.append(task.records[i] | {'completion': task.tok.decode(ids[start:]),
                                        'original': whole, 'text': task.tok.decode(ids)})
    return sum(call_each(task.verify, cases)) / len(cases)
