"""Keep the best checkpoint of a run as out_dir/best.pt, from the evaluation with the highest
goal, the first number of its line. It is a checkpoint as any other one:

    python train_grpo.py config/grpo_config.py plugins/best.py
    python sample.py out-grpo --generator=out-grpo/best.pt      # before: the best; after: the last

A run of plugins/lora.py: copy its folder, and best.pt onto the ckpt.pt there. A run that goes on
with a larger max_iters forgets its last evaluation, if that was at no multiple of eval_interval:
keep best.pt. The best of several evaluations had luck, too: on other prompts it is a little worse
than its score.

This file is executed in the globals of train_grpo.py, and its RunFolder takes the place of the one
there."""
import shutil


class RunFolder(RunFolder):
    """A folder with best.pt."""

    def log(self, step, metrics, *more):
        super().log(step, metrics, *more)
        if 'line to beat' not in metrics:       # of a step, not of an evaluation
            return
        # Scores with another line to beat are of other prompts or rewards. ckpt.pt is saved before
        # its evaluation, with the best of earlier ones; a resumed run evaluates it again.
        score, line = next(iter(metrics.values())), f"{metrics['line to beat']:.9f}"
        best = self.path / 'best.pt'
        if score > state.get('best', {}).get(line, -torch.inf) or not best.exists():
            state['best'] = {line: score}
            if devices.RANK == 0:
                half = shutil.copy(self.path / 'ckpt.pt', self.path / 'best.pt.tmp')
                half.replace(best)                              # whole or absent
