"""Try a GPU before a long run: steps on the CPU in float32, then on the GPU, then compiled, then in
bfloat16. All have the same prompts and random numbers, so their first rewards and entropies should
agree: to three digits in float32, to two in bfloat16.

    python -m extras.gpu_check                      # or with words of train_grpo.py

Nobody has run this on a GPU."""
import sys
import time

import train_grpo as grpo
from model import make_optimizers

if __name__ == "__main__":
    for flags in ('--device=cpu --dtype=float32', '--device=cuda --dtype=float32',
                  '--device=cuda --dtype=float32 --compile=True',
                  '--device=cuda --dtype=bfloat16 --compile=True'):
        run = grpo.set_up([*sys.argv[1:], *flags.split()])
        policy, scorer = run.policy, run.scorer
        optimizers = make_optimizers(policy, grpo.optimizer, grpo.weight_decay)
        for step in range(8):                   # the first one is slow: it compiles
            began = time.time()
            micro_steps, scores, A = grpo.collect(policy, scorer, grpo.get_prompts(run.data, step))
            metrics = grpo.learn(policy, scorer.reference, optimizers, micro_steps, A,
                                 grpo.learning_rate, grpo.kl_beta)
            print(f"{flags} | step {step} | reward {scores['reward'].mean():.4f} | "
                  f"entropy {metrics['entropy']:.4f} | {time.time() - began:.3f} s")
