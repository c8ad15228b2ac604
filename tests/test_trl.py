"""Scripts for TRL: a step of its GRPOTrainer is a step of ours; what has no equal is refused."""
import json
import runpy

import pytest
import torch

pytest.importorskip('trl')
import tokenizers
import transformers
from trl import GRPOTrainer

from extras.trl import script_of
from model import get_lr

FILES = {
    'rewards.py': """
rewards = {'mixed': 1.0, 'longest': 0.2, 'verify': 0.5}

def mixed(completions, answer, sampled, ended):
    return [len(text) * 0.1 + (right in own) + 0.3 * end
            for text, right, own, end in zip(completions, answer, sampled, ended)]

def longest(r, completions):
    k = len(r.sequences) // len(r.prompts)
    lengths = list(map(len, completions))
    return [float(x == max(lengths[i - i % k:][:k])) for i, x in enumerate(lengths)]
""",
    'mine.py': "def objective(stats, r):\n    return -stats.logp * r.A, 0 * r.A",
    'world.py': "def reply(completion):\n    return '=2' if completion == '1' else None"}
KL = '--kl_beta=0.3'
ONE = '--gradient_accumulation_steps=1'
MOVED = '--epochs=2'                # so ratios differ from 1


@pytest.fixture
def words(tmp_path, grpo):
    """Return words of an experiment with a small Llama: plain GRPO without a KL."""
    pieces = ['<s>', '</s>', *'0123456789+=']
    tok = tokenizers.Tokenizer(tokenizers.models.BPE({x: i for i, x in enumerate(pieces)}, []))
    tok.add_special_tokens(pieces[:2])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, bos_token='<s>', eos_token='</s>',
        chat_template='<s>{{ messages[0].content }}=').save_pretrained(tmp_path)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(pieces), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, initializer_range=0.1, eos_token_id=1)).save_pretrained(tmp_path)
    sums = [{'prompt': f'{a}+{b}=', 'answer': str(a), 'held_out': a > 6}
            for a in range(9) for b in range(9, 14)]
    (tmp_path / 'sums.jsonl').write_text('\n'.join(map(json.dumps, sums)))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return ['plugins/causal.py', 'plugins/hf.py', f'{tmp_path}/rewards.py', '--device=cpu',
            '--dtype=float32', f'--generator={tmp_path}', f'--dataset={tmp_path}/sums.jsonl',
            f'--out_dir={tmp_path}/out', '--kl_beta=0', '--entropy_coef=0', '--grad_clip=0',
            '--max_new_tokens=9', '--group_size=4', '--batch_size=3', '--max_iters=2',
            '--gradient_accumulation_steps=2', '--eval_prompts=4', '--log_interval=1']


def trainer_of(words, tmp_path, name='script'):
    """Execute the script for words. Return its trainer."""
    (tmp_path / 'script.py').write_text(script_of(words))
    return runpy.run_path(tmp_path / 'script.py', run_name=name)['trainer']


@pytest.mark.parametrize('flags', [
    '', f'{MOVED} --chat_template=True --loss_norm=sequence --clip_low=0.01',
    f'{MOVED} {KL} config/kl/k3.py --adv_norm=batch --temperature=0.7',
    f'{MOVED} config/papers/grpo.py {KL} config/kl/k3_ratio.py',
    f'{MOVED} {ONE} --entropy_coef=0.1', f'{MOVED} config/papers/dr_grpo.py',
    f'{MOVED} config/papers/gspo.py', f'{MOVED} config/papers/gspo.py --loss_norm=constant',
    f'{MOVED} config/papers/cispo.py --clip_high=0.01', 'config/papers/gdpo.py'])
def test_a_step_of_trl_has_our_advantages_loss_and_gradient(flags, words, tmp_path, grpo):
    """TRL gets what our policy has written."""
    words += flags.split()
    trainer = trainer_of(words, tmp_path)
    _, networks, task = grpo.set_up(words)
    rollouts, _, A = grpo.collect(networks, task, 0)
    completions = [ids[r.t[r.n == n]].tolist()
                   for r in rollouts for n, ids in enumerate(r.sequences)]
    rows = torch.cat([r.prompts.record for r in rollouts]).repeat_interleave(4).tolist()
    texts = ['<s>' + task.records[i]['prompt'] for i in rows]
    if grpo.chat_template:
        texts = [[{'role': 'user', 'content': text[3:]}] for text in texts]

    def generate(prompt_ids, *_):
        assert prompt_ids == GRPOTrainer._tokenize_prompts(trainer, texts)[0]
        return completions, None

    trainer._generate_single_turn = generate
    trainer.model.train()
    inputs = trainer._generate_and_score_completions([trainer.train_dataset[i] for i in rows])
    ours, theirs = list(networks.policy.parameters()), list(trainer.model.parameters())
    if grpo.epochs == 2:                        # as if the first epoch had been
        for r in rollouts:
            r.logp_old = grpo.log_probs_of(networks.policy, r)
        for p in ours + theirs:
            p.data *= 1.2
        grpo.epochs = 1
    loss = grpo.learn(networks, [], rollouts, 0.0)['loss']      # no optimizer: gradients stay
    trainer.current_gradient_accumulation_steps = len(rollouts)
    for n in range(0, len(rows), 12):           # a micro-step
        part = {name: x[n:n + 12] if x.dim() else x for name, x in inputs.items()}
        loss_of_trl = trainer._compute_loss(trainer.model, part)
        loss_of_trl.backward()
        loss -= loss_of_trl.item()
    assert len(A.unique()) > 3 and len(set(map(len, completions))) > 2 and abs(loss) < 1e-5
    torch.testing.assert_close([A.flatten()] + [p.grad for p in ours],
                               [inputs['advantages']] + [p.grad for p in theirs],
                               atol=1e-5, rtol=1e-4)


def test_the_script_trains_at_our_learning_rates_and_its_policy_opens_here(words, tmp_path, grpo):
    trainer = trainer_of([*words, '--epochs=2', '--learning_rate=0.01'], tmp_path, '__main__')
    logged = [line['learning_rate'] for line in trainer.state.log_history if 'loss' in line]
    assert logged == pytest.approx([get_lr(step, 0.01, 1e-4, 10, 2) for step in (0, 1)])
    start, end = [grpo.load_network(folder, 'cpu')[0].network.lm_head.weight
                  for folder in (grpo.generator, trainer.args.output_dir)]
    assert torch.equal(end, trainer.model.lm_head.weight) and not torch.equal(start, end)


@pytest.mark.parametrize('flags', [
    'config/grpo_think.py', '--generator=out-run', '--max_new_tokens=0', '--max_iters=0',
    '--resume=True', '--blank_kind=random', 'world.py', '--rewards={"judge":1}', '--top_k=2',
    '--top_p=0.9', '--reference=out', '--dtype=float64', KL, '--mini_batches=2',
    f'config/papers/gspo.py {KL} config/kl/k3_ratio.py', 'config/papers/gdpo.py --adv_norm=std',
    'config/papers/cispo.py config/papers/gspo.py --loss_norm=token',
    'config/papers/cispo.py --loss_norm=sequence', '--entropy_coef=0.1',
    f'{ONE} --entropy_coef=0.1 --loss_norm=sequence', 'config/papers/dapo.py', 'mine.py',
    'mine.py config/papers/gspo.py'])
def test_an_experiment_of_which_trl_has_no_equal_is_refused(flags, words, tmp_path):
    flags = [f'{tmp_path}/{flag}' if flag in FILES else flag for flag in flags.split()]
    assert script_of(words)                     # without the flags it is not
    with pytest.raises(AssertionError, match='TRL has no equal of'):
        script_of(words + flags)
