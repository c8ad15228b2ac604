"""Look at a run."""
from data.dataset import texts


def show(step, batch, scores, reward, advantages, tok, names, causal, groups=3, most=6):
    """Prints the completions of the first groups, with rewards and advantages (B, k)."""
    pairs, k = list(zip(*texts(tok, batch['tokens'], batch['mask'], batch['rows'], causal))), reward.size(1)
    for p in range(min(groups, len(batch['tokens']))):
        print(f"  step {step} | {pairs[p * k][0]}")
        seen = {pairs[p * k + j][1]: j for j in reversed(range(k))}
        for text, j in sorted(seen.items(), key=lambda item: -reward[p, item[1]])[:most]:
            parts = ' '.join(f"{name} {scores[n, p, j]:.3f}" for n, name in enumerate(names))
            times = sum(pairs[p * k + i][1] == text for i in range(k))
            print(f"    {times:3d} x {text!r:12} reward {reward[p, j]:+.3f} advantage "
                  f"{advantages[p, j]:+.3f}  {parts if len(names) > 1 else ''}", flush=True)
