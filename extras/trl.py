"""Write a script that runs an experiment with GRPOTrainer of TRL: on several machines, with vLLM,
with LoRA. The policy that it leaves opens here, and one of ours opens there (extras/export.py).

    python -m extras.trl config/grpo_problems.py > problems_trl.py
    python -m extras.trl config/grpo_tools.py --group_size=16 > tools_trl.py
    python -m extras.trl --table                            # that of docs/other-engines.md

Config files and flags are those of train_grpo.py. The script reads the same texts, and calls the
same rewards and the same reply() of a world. What would be another experiment there is refused,
with the nearest that works; smaller differences are named at the head of the script.
docs/other-engines.md has the knobs of TRL and verl beside ours.

The file of a paper says by TRL = {...} which arguments of GRPOConfig do what its functions do; a
value may be a function without arguments."""
import os
import re
import shlex
import string
import sys
import textwrap
from pathlib import Path

import train_grpo as grpo
from judge import check_rewards
from run.checks import check_knobs
from run.command import configure, show_error

# The rows of docs/other-engines.md. Names of verl are those of its ppo_trainer.yaml of autumn 2025;
# actor, model and rollout are parts of actor_rollout_ref. An empty cell: no counterpart is known.
KNOBS = """\
here | TRL 1.16.0 | verl
--- | --- | ---
dataset | train_dataset, eval_dataset | data.train_files, data.val_files
generator | model | model.path
rewards | reward_funcs, reward_weights | custom_reward_function, one
chat_template | prompts are messages | always
max_new_tokens | max_completion_length | data.max_response_length
group_size | num_generations | rollout.n
batch_size, of prompts | per_device_train_batch_size, of completions | \
actor.ppo_micro_batch_size_per_gpu, of completions
gradient_accumulation_steps, of a step | steps_per_generation, of a rank | \
data.train_batch_size, in prompts
mini_batches | steps_per_generation / gradient_accumulation_steps | \
data.train_batch_size / actor.ppo_mini_batch_size
epochs | num_iterations | actor.ppo_epochs
temperature, top_k, top_p | temperature, top_k, top_p | rollout.temperature, .top_k, .top_p
adv_norm | scale_rewards; rloo: and reward_weights | \
algorithm.adv_estimator, algorithm.norm_adv_by_std_in_grpo
objective | cispo: loss_type; gspo: importance_sampling_level | actor.policy_loss.loss_mode
clip_low | epsilon | actor.clip_ratio_low
clip_high | epsilon_high; of cispo 1 + clip_high | actor.clip_ratio_high
loss_norm: token, sequence, constant | loss_type: dapo, grpo, dr_grpo | actor.loss_agg_mode
kl_beta | beta | actor.use_kl_loss, actor.kl_loss_coef
kl_type | k3; k3_ratio: use_bias_correction_kl | actor.kl_loss_type
target_kl | | algorithm.kl_ctrl, of a KL in the reward
entropy_coef | entropy_coef | actor.entropy_coeff
optimizer | adamw: optim |
learning_rate | learning_rate | actor.optim.lr
min_lr | lr_scheduler_type, lr_scheduler_kwargs | actor.optim.min_lr_ratio
warmup_iters | warmup_steps, in updates | actor.optim.lr_warmup_steps
max_iters | max_steps, in updates | trainer.total_training_steps
weight_decay | weight_decay | actor.optim.weight_decay
grad_clip | max_grad_norm | actor.grad_clip
eval_prompts | eval_dataset, num_generations_eval | data.val_files, rollout.val_kwargs.n
eval_interval | eval_steps, save_steps | trainer.test_freq, trainer.save_freq
log_interval | logging_steps |
out_dir | output_dir | trainer.default_local_dir
resume | train(resume_from_checkpoint=True) | trainer.resume_mode
wandb_project | report_to | trainer.logger, trainer.project_name
device | use_cpu, if there is no other | trainer.device
dtype | bf16 |
compile | torch_compile | actor.use_torch_compile
seed | seed |
judge, reference, blank_kind, n_fill_steps, fill_order, entropy_floor | |
likelihood, draw_prompts, experience, credit | |
"""

# values of knobs that TRL can express, and the nearest to those that it cannot
POSSIBLE = {
    'resume': ((False,), "trainer.train(resume_from_checkpoint=True) at the end of the script"),
    'fill_order': (('random',), "--fill_order=random, which a causal generator does not read"),
    'blank_kind': (('random', 'answer'), "--blank_kind=answer, of pairs of prompt and answer"),
    'n_fill_steps': ((1,), "--n_fill_steps=1, with a causal generator"),
    'top_k': ((0,), "--top_k=0: there the ratio is that of all tokens"),
    'top_p': ((1.0,), "--top_p=1.0: there the ratio is that of all tokens"),
    'target_kl': ((0.0,), "a fixed kl_beta"),
    'optimizer': (('adamw',), "--optimizer=adamw"),
    'reference': (('',), "--reference='', the start; distillation is another trainer there"),
    'entropy_floor': ((0.0,), "--entropy_floor=0, a constant bonus"),
    'dtype': (('auto', 'float32', 'bfloat16'), "--dtype=float32"),
}

# what is nearest to a function for which its file names no counterpart
NEAREST = {
    'adv_norm': "--adv_norm=none, not divided",
    'objective': "--objective=ppo",
    'likelihood': "--likelihood=trajectory, which is exact",
    'draw_prompts': "--draw_prompts=random, with more prompts",
    'experience': "--experience=sampled",
    'credit': "--credit=completion",
    'kl_type': "config/kl/k3_ratio.py, which has the same mean, and the same mean gradient",
}

SCRIPT = string.Template('''\
r"""GRPOTrainer of TRL in the place of train_grpo.py. The first command has written this:

    python -m extras.trl $words
    pip install trl==1.16.0 && accelerate launch THIS_FILE

Prompts come in another order, each once before any comes twice. There is no greedy
evaluation, so no line to beat. The cosine ends one update earlier. weight_decay spares
biases and norms. An entropy bonus is a mean of each micro-step. A completion ends with any
eos of the model. Comments say which lines turn on vLLM and LoRA. The date of a chat
template is today's.
"""
import functools

import torch
from datasets import Dataset
from transformers import AutoTokenizer, GenerationConfig, trainer_utils
from trl import GRPOConfig, GRPOTrainer

from dataset import read_texts, rng_for
from judge import Scorer
from run.command import configure, said_by
from run.machine import n_ranks
import train_grpo

train, held_out, verify, reply = read_texts($dataset)
records = train + held_out
columns = {name: None for record in records for name in record}
tok = AutoTokenizer.from_pretrained($generator)$bos
decode = functools.partial(tok.decode, skip_special_tokens=True,
                           clean_up_tokenization_spaces=False)
data = Dataset.from_list([{'row': i, 'prompt': $prompt}
                          for i, record in enumerate(records)])
chosen = rng_for(0, 'val').permutation(range(len(train), len(records)))[:$eval_prompts]
_, functions = configure(dict(vars(train_grpo)), $flags)    # of files
$world
is_missing = {}             # {reward: of which completions}


def reward_of(name):
    """Return a reward as TRL calls it. Ours gets the columns that it names."""
    def reward(completion_ids, row, own_ids=None, world_ended=(), **_):
        own_ids = own_ids or completion_ids     # without what a world has said
        cases = [columns | records[i] for i in row]
        for n, (case, ids, own) in enumerate(zip(cases, completion_ids, own_ids)):
            ended = own[-1] in trainer.eos_token_ids or any(world_ended[n:n + 1])
            text, sampled = decode(ids), decode(own)
            case |= {'completion': text, 'text': case['prompt'] + text, 'ended': ended,
                     'sampled': sampled}
        own = {'tokens': map(len, own_ids), 'ended': [case['ended'] for case in cases]}
        values = list(own[name] if name in own else Scorer(None, verify, functions).score_one(
            name, None, lambda: cases))
        if name == $watched:    # it is no reward, so it is missing where the rewards are
            return [None if all(others) else value
                    for value, others in zip(values, zip(*is_missing.values()))]
        is_missing[name] = [value is None for value in values]
        assert is_missing[name] == [*is_missing.values()][0], (
            f"{name}: TRL takes one of several rewards that is None for 0: expected all or none")
        return values
    reward.__name__ = name
    return reward


assert $n % ($mini_batches * n_ranks()) == 0, f"{n_ranks()} ranks cannot share $n micro-steps"
config = GRPOConfig(
    $out_dir + '-trl', num_generations=$group_size, max_completion_length=$max_new_tokens,
    steps_per_generation=$n // n_ranks(),                       # shared by the ranks
    gradient_accumulation_steps=$n // $mini_batches // n_ranks(), num_iterations=$epochs,
    per_device_train_batch_size=$batch_size * $group_size, max_steps=$max_iters * $updates,
    temperature=$temperature, top_k=$top_k, top_p=$top_p, disable_dropout=True, seed=$seed,
    $algorithm,
    epsilon=$clip_low, beta=$kl_beta, entropy_coef=$entropy_coef,
    learning_rate=$learning_rate, max_grad_norm=$grad_clip, weight_decay=$weight_decay,
    adam_beta2=0.95, lr_scheduler_type='cosine_warmup_with_min_lr',
    lr_scheduler_kwargs={'min_lr': $min_lr, 'warmup_lr_rate': 1 / ($warmup_iters * $updates + 1)},
    warmup_steps=$warmup_iters * $updates + 1, report_to=$report_to, save_total_limit=1,
    eval_strategy='steps', eval_on_start=True, eval_steps=$eval_interval * $updates,
    num_generations_eval=4, per_device_eval_batch_size=4 * $batch_size,
    save_steps=$eval_interval * $updates, logging_steps=$log_interval * $updates, bf16=$bf16,
    use_cpu=not torch.accelerator.is_available(), torch_compile=$compile,
    use_vllm=False, vllm_mode='colocate',       # True: pip install vllm
    model_init_kwargs={'dtype': 'float32'}, gradient_checkpointing=False)
trainer = GRPOTrainer($generator, [reward_of(name) for name in $names], config,
                      data.select(range(len(train))), data.select(chosen), tok,$rollout
                      # from peft import LoraConfig; about ten times the learning rate
                      peft_config=None)       # LoraConfig(16, target_modules='all-linear')
trainer.model.generation_config = GenerationConfig(eos_token_id=trainer.eos_token_ids)      # only

if __name__ == '__main__':
    assert not trainer_utils.get_last_checkpoint($out_dir + '-trl'), "an older run is there"
    trainer.train()
    # with LoRA first: trainer.model = trainer.model.merge_and_unload()
    trainer.save_model()                # it opens here: --generator=$folder''')

# parts of it
CHAT = "[{'role': 'user', 'content': record['prompt']}]"
# a run of the project begins each text with bos, which some tokenizers do not write
BOS = """
bos = '' if tok('').input_ids else tok.bos_token or ''
assert tok('1').input_ids[-1:] == tok('1', add_special_tokens=False).input_ids[-1:], "prompts end"
"""
WORLD = '''

reply = functions.get('reply', reply)
row_of = {str(example['prompt']): example['row'] for example in data}
encode = functools.partial(tok.encode, add_special_tokens=False)


def tell_apart(ids, row):
    """Return which ids of a completion are the policy's, and those that the world has to say next.
    """
    is_own, to_say = [], []
    for n, token in enumerate(ids, 1):
        is_own.append(not to_say)
        to_say = to_say[1:]
        if token in trainer.eos_token_ids:
            break
        if is_own[-1]:
            case = columns | records[row] | {'completion': decode(ids[:n])}
            case['text'] = case['prompt'] + case['completion']
            to_say, done = said_by(reply, case, encode)
            assert not {*to_say} & {*trainer.eos_token_ids}, "it says eos, which ends a text in TRL"
            to_say += [tok.eos_token_id] * done
    return is_own, to_say


def rollout(prompts, trainer):
    """Generate as TRL does, but whenever the world has something to say, it is certain."""
    assert not config.use_vllm, "vLLM samples without the world: expected use_vllm=False"
    rows = [row_of[str(prompt)] for prompt in prompts]
    prompt_ids = trainer._tokenize_prompts(prompts)[0]
    start = max(map(len, prompt_ids))

    def world(sequences, scores):
        for ids, score, row in zip(sequences[:, start:].tolist(), scores, rows):
            for token in tell_apart(ids, row)[1][:1]:
                score.fill_(-torch.inf)
                score[token] = 0
        return scores

    trainer.model.generate = functools.partial(type(trainer.model).generate, trainer.model,
                                               logits_processor=[world])
    completion_ids, _ = trainer._generate_single_turn(prompt_ids, None, {}, 1)
    masks = [tell_apart(ids, row)[0] for ids, row in zip(completion_ids, rows)]
    world_ended = [ids[-1] in trainer.eos_token_ids and not mask[-1]
                   for ids, mask in zip(completion_ids, masks)]
    for ids, mask, is_over in zip(completion_ids, masks, world_ended):
        if is_over:
            ids.pop(), mask.pop()
    own_ids = [[token for token, own in zip(*pair) if own] for pair in zip(completion_ids, masks)]
    return {'prompt_ids': prompt_ids, 'completion_ids': completion_ids, 'logprobs': None,
            'env_mask': masks, 'own_ids': own_ids, 'world_ended': world_ended}

'''


def check(k, records, reply):
    """Refuse knobs k, records and a world that TRL cannot express, and say the nearest that it can.
    """
    for name, (values, nearest) in POSSIBLE.items():
        assert k[name] in values, (
            f"{name} = {k[name]!r} has no counterpart in TRL; the nearest is {nearest}")
    is_ours = os.path.exists(f"{k['generator']}/ckpt.pt") or k['generator'].endswith(('.py', '.pt'))
    assert not is_ours, (
        f"generator = {k['generator']} is a network of this project; the nearest is a folder of "
        "transformers, such as --generator=out/smollm2, or what extras.export writes of a run")
    config = Path(k['generator'], 'config.json')
    assert not config.exists() or 'MaskedLM' not in config.read_text(), (
        f"{k['generator']} fills blanks; TRL trains causal networks")
    assert k['max_new_tokens'] > 0 and k['max_iters'] > 0 and k['out_dir'], (
        "expected --max_new_tokens=N (0 follows the longest answer), --max_iters=N and --out_dir")
    assert k['kl_beta'] == 0 or k['kl_type'] != 'exact', (
        f"kl_type = 'exact' has no counterpart in TRL; the nearest is {NEAREST['kl_type']}")
    assert type(records[0]) is dict, (
        f"{k['dataset']} is running text; the nearest are JSON lines of prompts and answers")
    record_of = {record['prompt']: record for record in records}
    assert not reply or all(record == record_of[record['prompt']] for record in records), (
        "reply(): TRL knows a game by its prompt only; the nearest are prompts that differ")


def algorithm_of(k, functions):
    """Return the arguments of GRPOConfig that say how rewards are compared and what the loss is:
    those of our functions, and in their place what the files of others say."""
    settings = {
        'scale_rewards': {'std': 'group', 'batch': 'batch'}.get(k['adv_norm'], 'none'),
        'reward_weights': list(k['rewards'].values()),
        'loss_type': {'token': 'dapo', 'sequence': 'grpo', 'constant': 'dr_grpo'}[k['loss_norm']],
        'epsilon_high': k['clip_high'],
        'importance_sampling_level': 'token',
        'use_bias_correction_kl': False,
        'vllm_importance_sampling_correction': False,
    }
    for knob, nearest in NEAREST.items():
        if k[knob] in grpo.CHOICES[knob]:
            continue
        theirs = functions[k[knob]].__globals__.get('TRL')
        assert theirs, f"{knob} = {k[knob]!r} has no counterpart in TRL; the nearest is {nearest}"
        settings |= {name: setting() if callable(setting) else setting
                     for name, setting in theirs.items()}
    # (their loss_type is objective and divisor in one)
    assert settings['loss_type'] != 'cispo' or k['loss_norm'] == 'token', (
        "TRL has cispo with --loss_norm=token only")
    return settings


def script_of(words):
    """Return the script for words of a command line."""
    k, functions = configure(vars(grpo) | grpo.DEFAULTS | {'__file__': __file__}, words)
    train, held_out, verify, reply = grpo.read_texts(k['dataset'])
    reply = functions.get('reply', reply)
    check(k, train + held_out, reply)
    check_knobs(**k)
    check_rewards(k['rewards'], verify, functions)
    weights = k['rewards']
    unknown = weights.keys() - functions - {'ended', 'tokens', 'verify'}
    assert not unknown, (
        f"rewards {unknown} have no counterpart in TRL; the nearest is a function of a config "
        "file, and --kl_beta for 'kl'")
    settings = algorithm_of(k, functions)
    watched = 'verify' if verify and 'verify' not in weights else None
    if watched:                                 # and not rewarded
        weights = weights | {watched: 0.0}
        settings['reward_weights'].append(0.0)
    values = k | {
        'names': list(weights), 'watched': watched, 'min_lr': min(k['min_lr'], k['learning_rate']),
        'bf16': k['dtype'] != 'float32', 'flags': words,
        'n': k['gradient_accumulation_steps'], 'updates': k['epochs'] * k['mini_batches'],
        'report_to': 'wandb' if k['wandb_project'] else 'none',
    }
    code = {
        'words': shlex.join(words),
        'folder': k['out_dir'] + '-trl',
        'bos': '' if k['chat_template'] else BOS,
        'prompt': CHAT if k['chat_template'] else "bos + record['prompt']",
        'world': WORLD if reply else '',
        'rollout': '\n' + 22 * ' ' + 'rollout_func=rollout,' if reply else '',
        'algorithm': textwrap.fill(', '.join(f'{name}={value!r}' for name, value in
                                             settings.items()), 92, subsequent_indent=' ' * 4),
    }
    return SCRIPT.substitute({name: repr(value) for name, value in values.items()} | code)


def table_of_knobs():
    """Return the table of docs/other-engines.md."""
    return re.sub('(?m)^(.*)$', r'| \1 |', KNOBS.strip())


if __name__ == "__main__":
    sys.excepthook = show_error
    words = sys.argv[1:]
    print(table_of_knobs() if words == ['--table'] else script_of(words))
