# How many samples of a network that writes from left to right are right? A recipe with a `stop_at`
# includes this file. Its complete() is the one of plugins/causal.py.


def share_right(network, held_out):
    """Return the share of right samples. held_out: Prompts, whose records are continued."""
    if grpo.Task.kind != 'causal':      # here, because a run executes this file, too, for its name
        grpo.configure(vars(grpo), ['plugins/causal.py'], say=lambda text: None)
    task = held_out.task
    data = datasets.load(dataset)._replace(train=task.records[:task.n_train],
                                           held_out=task.records[task.n_train:])
    prompts = grpo.Task(data, task.tok, 'answer', network).prompts_of(held_out.record)
    rollout = grpo.complete(network, prompts, 1)
    return grpo.score(rollout, None, {'verify': 1.0}, 0, 'val')['verify'].mean()
