"""One-line changes that change behaviour, and the test that notices each: python tests/mutants.py

Each is made in a copy of the repository, one after the other, and the suite runs until its first
failure. Not collected by pytest; it takes some ten minutes. A number picks one of them."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MUTANTS = [
    # file, what stands there, what takes its place
    ('train_grpo.py', "'rloo': k / (k - 1)", "'rloo': 1.0"),
    ('train_grpo.py', "1 / (reward.std() + eps)", "1 / (reward.std(1, keepdim=True) + eps)"),
    ('train_grpo.py', ".masked_fill(dead_groups(reward), 0.0)", ""),
    ('train_grpo.py', "'k2': 0.5 * gap.square()", "'k2': gap.square()"),
    ('train_grpo.py', "'k3_ratio': ratio * k3", "'k3_ratio': k3"),
    ('train_grpo.py', "-torch.min(ratio * A, clipped * A)", "-torch.max(ratio * A, clipped * A)"),
    ('train_grpo.py', "-clipped.detach() * A * taken", "-clipped * A * taken"),
    ('train_grpo.py', "kl = exact_kl(logp_full, logp_ref)", "kl = exact_kl(logp, logp_ref)"),
    ('train_grpo.py', "entropy = exact_entropy(logp_full)", "entropy = exact_entropy(logp)"),
    ('train_grpo.py', "-entropy_coef * (weight", "entropy_coef * (weight"),
    ('train_grpo.py', "'constant': N * T", "'constant': N"),
    ('train_grpo.py', "micro_steps[i:i + size]", "micro_steps[:size]"),
    ('train_grpo.py', "sum(loss_divisor(r) for _, r in batch)", "loss_divisor(batch[0][1])"),
    ('train_grpo.py', "        all_reduce_sum(divisor) ", "        divisor "),
    ('train_grpo.py', "        all_reduce_gradients(policy) ", "        "),
    ('train_grpo.py', "all_reduce_sum(scores[name])", "scores[name]"),
    ('train_grpo.py', "logp_old = None if is_only_update else r.logp_old", "logp_old = None"),
    ('train_grpo.py', "A = advantages.flatten()[r.owner]", "A = advantages.flatten()[r.point % 2]"),
    ('train_grpo.py', "draws(seed, 'prompts', step)", "draws(seed, 'prompts', 0)"),
    ('train_grpo.py', "k = 4    ", "k = group_size    "),
    ('train_grpo.py', "(scores['verify'] == 1).any(1)", "(scores['verify'] == 1).all(1)"),
    ('train_grpo.py', "beta = run['kl_beta']", "beta = kl_beta"),
    ('model.py', "logits = logits / temperature", "logits = logits * temperature"),
    ('model.py', "keep = mass_before < top_p", "keep = mass_before + ranked.exp() < top_p"),
    ('model.py', "right=True)", "right=False)"),
    ('model.py', "drawn[point, owner % k] = uniforms", "drawn[point, owner % k] = 1 - uniforms"),
    ('model.py', "n = n_blanks[prompt]", "n = n_blanks.max()"),
    ('model.py', "(left, -confidence", "(left, confidence"),
    ('model.py', "n_points + point", "point"),
    ('model.py', "future.triu(start + 1)", "future.triu(start)"),
    ('model.py', "where[:, t + 1:] &= ~ended", "pass"),
    ('model.py', "position - first]\n", "position - first - 1]\n"),
    ('model.py', "inputs = F.pad(tokens[:, :-1]", "inputs = F.pad(tokens[:, 1:]"),
    ('model.py', "if 'blocks.' in name and p.ndim == 2", "if p.ndim == 2"),
    ('model.py', "if zipfile.ZipFile(path).testzip():", "if False:"),
    ('judge.py', "-loss.sum(1) / is_real.sum(1)", "-loss.mean(1)"),
    ('judge.py', "values = 1 / (groups", "values = 1.0 * (groups"),
    ('judge.py', "return {'distinct'} | marked", "return {'distinct'}"),
    ('data/dataset.py', "closed(tok, row[cut:]) if", "row[cut:] if"),
    ('data/dataset.py', "(np.diff(edges) <= block_size)", "(np.diff(edges) < block_size)"),
    ('data/dataset.py', "(rank < count)", "(rank <= count)"),
    ('data/dataset.py', "at < stop, ids", "at <= stop, ids"),
]


def first_failure(folder):
    """The name of the first test that fails in a folder; '' if none does."""
    command = [sys.executable, '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider']
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = re.findall(r'(?:FAILED|ERROR) (\S+)', done.stdout)
    return found[0] if found else '' if done.returncode == 0 else 'the suite does not start'


if __name__ == "__main__":
    picked = [int(word) for word in sys.argv[1:]] or range(len(MUTANTS))
    alive = 0
    for number in picked:
        file, old, new = MUTANTS[number]
        with tempfile.TemporaryDirectory() as work:
            folder = shutil.copytree(ROOT, f'{work}/copy', ignore=shutil.ignore_patterns(
                'out*', '.*', '__pycache__', '*.bin', 'meta.json'))
            path = f'{folder}/{file}'
            with open(path, encoding='utf-8') as source:
                code = source.read()
            assert code.count(old) >= 1, f"{file} has no {old!r}"
            with open(path, 'w', encoding='utf-8') as source:
                source.write(code.replace(old, new, 1))
            found = first_failure(folder)
        alive += found == ''
        print(f"{number:3} {file}: {old.strip()!r} -> {new.strip()!r}: {found or 'ESCAPED'}",
              flush=True)
    print(f"{len(picked) - alive} of {len(picked)} noticed")
