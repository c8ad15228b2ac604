"""Scripts for TRL: they compile, knobs land in the right place; a step of TRL is a step of ours.

With a model of your own, on a CPU:
    PYTHONPATH=. python tests/test_trl.py extras/studies/grpo_sums.py --dtype=float32"""
import ast
import runpy
import sys
import warnings

import pytest
import torch

import train_grpo as grpo
from extras import trl as export
from processes import ROOT, fails, refused, succeeds, write
from rollout import token_stats

SUMS = ['extras/studies/grpo_sums.py', '--dataset=sums.jsonl', '--dtype=float32', '--device=cpu']
EXPRESSIBLE = ['grpo_problems', 'grpo_tools']


@pytest.fixture(autouse=True)
def texts():
    """Data of the experiments that somebody else has to download, and sums."""
    for name in ('gsm8k.jsonl', 'sums.jsonl', 'mine.jsonl'):
        write(name, ''.join(f'{{"prompt": "{a}+{b}=", "answer": "{a}"}}\n'
                            for a in range(9) for b in range(9)))


def script_of(*words):
    """Return the script for words of a command line."""
    return export.script_of(words)


def settings_of(*words):
    """Return {name: value} of GRPOConfig in the script for words of a command line, of one rank."""
    known = {'n_ranks': lambda: 1, 'torch': torch}
    calls = [node for node in ast.walk(ast.parse(script_of(*words))) if type(node) is ast.Call]
    call, = [call for call in calls if ast.unparse(call.func) == 'GRPOConfig']
    return {setting.arg: eval(ast.unparse(setting.value), known) for setting in call.keywords}


# ---- the script ----------------------------------------------------------------------------------


def test_every_shipped_experiment_is_a_short_script_or_is_refused_with_what_is_nearest():
    for path in sorted(ROOT.glob('config/grpo_*.py')):
        words = [f'config/{path.name}']
        if path.stem not in EXPRESSIBLE:
            refused('nearest', script_of, *words)
            continue
        script = script_of(*words)
        compile(script, 'script', 'exec')
        lines = script.splitlines()
        assert len(lines) <= (160 if 'reply =' in script else 92) and max(map(len, lines)) <= 100


@pytest.mark.parametrize('flags, expected', [
    ('--group_size=6 --batch_size=4 --gradient_accumulation_steps=8',
     {'num_generations': 6, 'per_device_train_batch_size': 24, 'steps_per_generation': 8,
      'gradient_accumulation_steps': 8, 'max_steps': 75, 'per_device_eval_batch_size': 16}),
    ('--gradient_accumulation_steps=8 --mini_batches=4 --epochs=3 --max_iters=5 --eval_interval=2 '
     '--log_interval=1',
     {'steps_per_generation': 8, 'gradient_accumulation_steps': 2, 'num_iterations': 3,
      'max_steps': 60, 'eval_steps': 24, 'logging_steps': 12, 'warmup_steps': 37}),
    ('--learning_rate=0.02 --min_lr=0.01 --warmup_iters=4 --weight_decay=0.1',
     {'learning_rate': 0.02, 'lr_scheduler_kwargs': {'min_lr': 0.01, 'warmup_lr_rate': 0.2},
      'warmup_steps': 5, 'weight_decay': 0.1, 'adam_beta2': 0.95, 'max_grad_norm': 1.0}),
    ('--kl_beta=0.1 --kl_type=k3 --entropy_coef=0.01 --clip_low=0.1 --clip_high=0.3',
     {'beta': 0.1, 'use_bias_correction_kl': False, 'entropy_coef': 0.01, 'epsilon': 0.1,
      'epsilon_high': 0.3}),
    ('--kl_beta=0.1 config/kl/k3_ratio.py --dtype=bfloat16 --compile=True --wandb_project=x',
     {'use_bias_correction_kl': True, 'bf16': True, 'torch_compile': True, 'report_to': 'wandb'}),
    ('config/papers/gdpo.py', {'multi_objective_aggregation': 'normalize_then_sum'}),
    ('config/papers/tis.py', {'vllm_importance_sampling_mode': 'token_truncate'}),
    ('config/papers/dapo.py --draw_prompts=random', {'loss_type': 'dapo', 'epsilon_high': 0.28,
                                                'scale_rewards': 'group', 'reward_weights': [1.0],
                                                'bf16': False}),
    ('config/papers/rloo.py --group_size=5 --rewards={"ended":2.0}',
     {'scale_rewards': 'none', 'reward_weights': [2.5, 0.0]}),      # verify is watched only
])
def test_knobs_become_settings_of_trl(flags, expected):
    settings = settings_of(*SUMS, *flags.split())
    assert settings | expected == settings


@pytest.mark.parametrize('word, flags', [
    ('config/kl/k3_ratio.py', '--kl_beta=0.1'),
    ('config/kl/k3_ratio.py', 'config/papers/grpo.py config/kl/k1.py'),
    ('objective=ppo', 'config/papers/gmpo.py'),
    ('draw_prompts=random', 'config/papers/dapo.py'),
    ('adv_norm=none', 'config/papers/maxrl.py'),
    ('causal', '--n_fill_steps=2'),
    ('pairs of prompt and answer', '--blank_kind=suffix'),
    ('a fixed kl_beta', '--kl_beta=0.1 --kl_type=k3 --target_kl=0.1'),
    ('optimizer=adamw', '--optimizer=muon'),
    ('dtype=float32', '--dtype=float64'),
    ('--max_new_tokens=N', '--max_new_tokens=0'),
    ('--max_iters=N', '--max_iters=0'),
    ('resume_from_checkpoint=True', '--resume=True'),
    ('likelihood=trajectory',
     'config/papers/diffucoder.py --fill_order=random --n_fill_steps=1 '
     '--adv_norm=none'),
    ('top_p = 0.0', '--top_p=0'),
    ('loss_norm=token', 'config/papers/cispo.py --loss_norm=sequence'),
    ('a function of a config file', '--rewards={"judge":1.0}'),
    ('extras.export', '--generator=run'),
    ('JSON lines', '--dataset=docstrings'),
])
def test_what_trl_cannot_express_is_refused_with_what_is_nearest(word, flags, tmp_path):
    (tmp_path / 'run/ckpt.pt').mkdir(parents=True)
    refused(word, script_of, *SUMS, *flags.split())


def test_the_commands_print_a_script_and_the_table_of_the_page():
    page = (ROOT / 'docs/other-engines.md').read_text('utf-8')
    assert succeeds('extras/trl.py', '--table').strip() in page
    write('lora_sums.py', '')
    script = succeeds('extras/trl.py', *SUMS, 'lora_sums.py')
    assert 'GRPOTrainer' in script and f"{[*SUMS, 'lora_sums.py']})" in script
    fails('the nearest is', 'extras/trl.py', 'config/grpo_think.py')


# ---- a step --------------------------------------------------------------------------------------


def steps(words, change=1.0):
    """Take the loss of a step here and in TRL, from the same completions: those that our policy
    samples. Then multiply all weights by `change`, so that ratio and KL are not those of the start.
    Return two of ({name: mean reward}, advantages, loss, {name: gradient})."""
    write('script_trl.py', script_of(*words))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trainer = runpy.run_path('script_trl.py')['trainer']
    run = grpo.set_up([*words, '--out_dir='])
    policy = run.policy
    # (our policy goes on behind the eos that a new Llama has besides, [CLS])
    trainer.eos_token_ids = [policy.tok.eos]
    micro_steps, scores, advantages = grpo.collect(policy, run.scorer,
                                                   grpo.get_prompts(run.data, 0))
    prompts, completions, rows = [], [], []
    for _, r in micro_steps:
        r.stats_old = grpo.stats_now(r, policy, run.scorer.reference)
        for ids, blank in zip(r.prompts.tokens, r.prompts.blank):
            begin = [policy.bos_id] * policy.has_bos + ids[:blank.int().argmax()].tolist()
            prompts += [policy.folder_ids[begin].tolist()] * r.prompts.k
        for ids, at in zip(r.sequences, r.is_sampled):          # with what a world has said
            written = ids[int(at.nonzero()[0]):]
            completions.append(written[written != policy.pad_id].tolist())
        rows += r.prompts.row.repeat_interleave(r.prompts.k).tolist()

    def generate(prompt_ids, *_):
        assert prompt_ids == prompts            # its tokenizer reads the same
        return completions, None

    trainer._generate_single_turn = generate
    trainer.model.train()
    inputs = trainer._generate_and_score_completions([trainer.train_dataset[i] for i in rows])
    for network in (policy, trainer.model):
        for p in network.parameters():
            p.data *= change
    ours = theirs = 0.0
    divisor = sum(grpo.loss_divisor(r) for _, r in micro_steps)
    for index, r in micro_steps:
        stats = token_stats(r, policy, run.scorer.reference)
        terms, _ = grpo.grpo_loss(stats, r, advantages[index], grpo.kl_beta, grpo.entropy_coef)
        (terms['loss'] / divisor).backward()
        ours += terms['loss'].item() / divisor.item()
    trainer.current_gradient_accumulation_steps = len(micro_steps)
    n = len(rows) // len(micro_steps)
    for start in range(0, len(rows), n):
        part = {name: value[start:start + n] if torch.is_tensor(value) and value.dim() else value
                for name, value in inputs.items()}
        loss = trainer._compute_loss(trainer.model, part)
        loss.backward()
        theirs += loss.item()
    logged = trainer._metrics['train']
    gradients = [{name: p.grad for name, p in network.named_parameters()}
                 for network in (policy.network, trainer.model)]
    means = [{name: scores[name].nanmean().item() for name in grpo.rewards},
             {name: logged[f'rewards/{name}/mean'][0] for name in grpo.rewards}]
    return ((means[0], advantages.flatten(), ours, gradients[0]),
            (means[1], inputs['advantages'], theirs, gradients[1]))


@pytest.mark.parametrize('flags', [
    '',
    'missing.py',
    '--chat_template=True world.py',
    '--chat_template=True --kl_beta=0.3 config/kl/k3_ratio.py --loss_norm=sequence --clip_low=0.01',
    '--kl_beta=0.3 --kl_type=k3 --adv_norm=batch --temperature=0.7 --gradient_accumulation_steps=1',
    'config/papers/gspo.py',
    'config/papers/cispo.py --clip_high=0.01',
    'config/papers/rloo.py --entropy_coef=0.1 --gradient_accumulation_steps=1 --loss_norm=token',
    'config/papers/dr_grpo.py'])
def test_a_step_of_trl_has_our_rewards_advantages_loss_and_gradient(flags):
    """On-policy, and in the second epoch, when ratios are clipped. Rewards can be missing."""
    pytest.importorskip('trl')
    write('missing.py', """rewards = {'some': 1.0}
def some(completions):
    return [None if '1' in text or '2' in text else len(text) * 0.1 for text in completions]""")
    write('world.py', "def reply(completion):\n"
          "    return '=2' if completion[-1:] in ['0', '1', '2', '3'] else None")
    from test_hf import folder_of
    words = [*SUMS, f'--generator={folder_of("llama")}', '--batch_size=3', '--group_size=4',
             '--gradient_accumulation_steps=2', '--max_new_tokens=6', '--rewards={"short": 1.0}',
             write('short.py', "def short(completions, answer, ended):\n"
                   "    return [len(text) * 0.1 + ('1' in text) + 0.3 * end"
                   "            for text, end in zip(completions, ended)]")]
    for more, change in ([], 1.0), (['--epochs=2'], 1.02):
        ours, theirs = steps([*words, *flags.split(), *more], change)
        assert len(set(ours[1].tolist())) > 3
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


if __name__ == '__main__':
    (reward, A, loss, g), (reward_trl, A_trl, loss_trl, g_trl) = steps(sys.argv[1:])
    norm = torch.stack([values.norm() for values in g_trl.values()]).norm()
    largest = max((g[name] - values).abs().max() for name, values in g_trl.items())
    off = torch.stack([(g[name] - values).norm() for name, values in g_trl.items()]).norm()
    print(f"rewards {reward} {reward_trl} | advantages differ by {(A - A_trl).abs().max():.1e}"
          f" | loss {loss:.2e} {loss_trl:.2e} | gradient: norm {norm:.4f}, differs by {off:.1e}, "
          f"in one weight by {largest:.1e} at most")
