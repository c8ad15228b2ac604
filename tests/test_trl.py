"""Scripts for TRL: a step of its GRPOTrainer is a step of ours; what has no equal is refused."""
import runpy

import pytest
import torch

pytest.importorskip('trl')

from extras.trl import script_of
from test_hf import save_network, save_tokenizer

FILES = {
    'sums.py': """
def texts():
    pairs = [(f'{a}+{b}=', str(a)) for a in range(9) for b in range(9, 14)]
    return pairs[10:], pairs[:10]
""",
    'rewards.py': """
rewards = {'mixed': 1.0, 'longest': 0.2, 'verify': 0.5}

def mixed(completions, answer, sampled, ended):
    return [len(text) * 0.1 + (right in own) + 0.3 * end
            for text, right, own, end in zip(completions, answer, sampled, ended)]

def longest(r, completions):
    lengths = list(map(len, completions))
    return [float(x == max(lengths[i - i % r.k:][:r.k])) for i, x in enumerate(lengths)]
""",
    'late.py': "rewards['late'] = 1.0\ndef late(texts, step):\n    return [step] * len(texts)",
    'mine.py': "def objective(stats, r):\n    return -stats.logp * r.advantage, 0 * r.advantage",
    'world.py': "def reply(completion):\n    return '=2' if completion == '1' else None"}


@pytest.fixture
def words(tmp_path, grpo):
    """Return words of an experiment with a small Llama: plain GRPO without a KL."""
    ids = {piece: i for i, piece in enumerate(['<s>', '</s>', *'0123456789+='])}
    save_tokenizer(tmp_path, ids, around='<s> $A', bos_token='<s>', eos_token='</s>',
                   chat_template='<s>{{ messages[0].content }}=')
    save_network(tmp_path, 'LlamaForCausalLM', vocab_size=14, eos_token_id=1,
                 initializer_range=0.1, tie_word_embeddings=False)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return f"""plugins/causal.py plugins/hf.py {tmp_path}/rewards.py --device=cpu --dtype=float32
        --generator={tmp_path} --dataset={tmp_path}/sums.py --out_dir={tmp_path}/out --kl_beta=0
        --entropy_coef=0 --grad_clip=0 --max_new_tokens=9 --group_size=4 --batch_size=3
        --max_iters=2 --gradient_accumulation_steps=2 --eval_prompts=4 --log_interval=1""".split()


STEPS = """
--epochs=1
--epochs=2 --chat_template=True --loss_norm=sequence --clip_low=0.01
--epochs=2 --kl_beta=0.3 config/kl/k3.py --adv_norm=batch --temperature=0.7
--epochs=2 config/papers/grpo.py --kl_beta=0.3 config/kl/k3_ratio.py
--epochs=2 --gradient_accumulation_steps=1 --entropy_coef=0.1
--epochs=2 config/papers/dr_grpo.py
--epochs=2 config/papers/gspo.py
--epochs=2 config/papers/gspo.py --loss_norm=constant
--epochs=2 config/papers/cispo.py --clip_high=0.01
config/papers/gdpo.py
--epochs=2 plugins/lora.py --kl_beta=0.3 config/kl/k3.py --lora_rank=3 --lora_alpha=9"""


@pytest.mark.parametrize('flags', STEPS.strip().splitlines())
def test_a_step_of_trl_has_our_advantages_loss_and_gradient(flags, words, tmp_path, grpo):
    """TRL gets what our policy has written. In a second epoch ratios are not 1."""
    words += flags.split()
    script = tmp_path / 'script.py'
    script.write_text(script_of(words))
    trainer = runpy.run_path(str(script))['trainer']
    _, data = grpo.read_words(words)
    networks, task = grpo.open_task(data)
    policy = networks.policy
    rollouts, scores = grpo.collect(networks, task, 0)
    completions = [ids[r.place[r.text_of == n]].tolist()
                   for r in rollouts for n, ids in enumerate(r.texts)]
    rows = torch.cat([r.prompts.record for r in rollouts]).repeat_interleave(4).tolist()
    end = '=' if grpo.chat_template else ''

    def generate(prompt_ids, *_):
        texts = ['<s>' + task.records[i]['prompt'] + end for i in rows]
        assert list(map(task.tok.theirs.decode, prompt_ids)) == texts
        return completions, None

    trainer._generate_single_turn = generate
    trainer.model.train()
    inputs = trainer._generate_and_score_completions([trainer.train_dataset[i] for i in rows])
    ours, theirs = [[p for p in network.parameters() if p.requires_grad]
                    for network in (policy, trainer.model)]
    if grpo.epochs == 2:                        # as if the first had been
        for r in rollouts:
            r.logp_old = grpo.log_probs_of(policy, r)
        for p, q in zip(ours, theirs, strict=True):
            p.data = 1.2 * p + 0.01 * (p == 0)  # some are 0 at the start
            q.data = p.data.clone()             # adapters began at random
        grpo.epochs = 1
    loss = grpo.learn(networks, [], rollouts, 0.0)['loss']      # no optimizer: gradients stay
    trainer.current_gradient_accumulation_steps = len(rollouts)
    for n in range(0, len(rows), 12):           # a micro-step
        part = {name: x[n:n + 12] if x.dim() else x for name, x in inputs.items()}
        loss_of_trl = trainer._compute_loss(trainer.model, part)
        loss_of_trl.backward()
        loss -= loss_of_trl.item()
    assert abs(loss) < 1e-5
    torch.testing.assert_close([scores['advantage'].float().flatten()] + [p.grad for p in ours],
                               [inputs['advantages']] + [p.grad for p in theirs],
                               atol=1e-5, rtol=1e-4)


REFUSED = """
config/grpo_think.py
--generator=config
--max_new_tokens=0
--max_iters=0
--resume=True
HERE/world.py
--rewards={"judge":1}
--top_k=2
--top_p=0.9
--reference=out
--dtype=float64
--kl_beta=0.3
--mini_batches=2
--kl_beta=0.3 config/papers/gspo.py config/kl/k3_ratio.py
config/papers/gdpo.py --adv_norm=std
config/papers/cispo.py --loss_norm=sequence
config/papers/cispo.py config/papers/gspo.py --loss_norm=token
--entropy_coef=0.1
--gradient_accumulation_steps=1 --entropy_coef=0.1 --loss_norm=sequence
HERE/late.py
config/papers/dapo.py
HERE/mine.py
HERE/mine.py config/papers/gspo.py"""


@pytest.mark.parametrize('flags', REFUSED.strip().splitlines())
def test_an_experiment_of_which_trl_has_no_equal_is_refused(flags, words, tmp_path):
    with pytest.raises(AssertionError, match='TRL (has no equal of|cannot run this)'):
        script_of(words + flags.replace('HERE', str(tmp_path)).split())
