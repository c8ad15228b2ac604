"""Print a script that goes on with an experiment in GRPOTrainer of TRL: on several machines, or
with vLLM. Its policy opens here again.

    python -m extras.trl config/grpo_problems.py --group_size=16 > problems_trl.py

Words are those of train_grpo.py. The network is one of transformers (plugins/hf.py). The script
reads the same texts and calls the same rewards, and the loss of the same completions is the same.
An experiment of which TRL has no equal is refused."""
import contextlib
import inspect
import os
import shlex
import string
import sys
from pathlib import Path

import train_grpo as grpo
from plumbing.configurator import configure
from plumbing.datasets import load

SCALE = {'std': 'group', 'batch': 'batch', 'none': 'none'}
LOSS = {'token': 'dapo', 'sequence': 'grpo', 'constant': 'dr_grpo'}
ROOT = Path(__file__).resolve().parent.parent
CORE = {str(path.relative_to(ROOT)) for path in [*ROOT.glob('*.py'), *ROOT.glob('plumbing/*.py')]}
# files that put functions in the place of ours, and the arguments of TRL that do the same
FILES = {'plugins/causal.py': '', 'plugins/hf.py': '', 'plugins/lora.py': '',
         'config/kl/k3.py': '',
         'config/kl/k3_ratio.py': "use_bias_correction_kl=True",
         'config/papers/cispo.py': "loss_type='cispo', epsilon_high=1 + $clip_high",
         'config/papers/gdpo.py': "multi_objective_aggregation='normalize_then_sum'",
         'config/papers/gspo.py': "importance_sampling_level='sequence'"}
# TRL has no equal of an experiment in which one of these is true. files: those names
REFUSED = """
not {'causal', 'hf'} <= files       # TRL trains language models
not Path(find_network(generator), 'tokenizer_config.json').exists()      # or extras.export
max_new_tokens == 0 or max_iters == 0 or resume
globals().get('reply') or load(dataset).reply       # a world
'judge' in rewards
top_k > 0 or top_p < 1              # there the ratio is that of all ids
reference                           # there it is the start
dtype == 'float64'
kl_beta > 0 and not files & {'k3', 'k3_ratio'}      # there the KL is an estimate
{'gspo', 'k3_ratio'} <= files       # there both have the ratio of the text
{'gspo', 'cispo'} <= files
'cispo' in files and loss_norm != 'token'
'gdpo' in files and adv_norm != 'batch'
mini_batches > 1 and loss_norm == 'token'           # there all are divided by the same number
entropy_coef > 0 and (loss_norm != 'token' or gradient_accumulation_steps > 1)  # a mean of means
asked & {'step', 'split', 'networks'}       # by a reward
"""

SCRIPT = '''\
r"""GRPOTrainer of TRL in the place of train_grpo.py. In the folder of the project:

    python -m extras.trl $command > THIS_FILE
    pip install trl==1.16.0 && accelerate launch THIS_FILE

Other than there, prompts come in another order, each once before any comes twice; mini-batches are
random completions; a completion ends with any eos of the model; after a step without a gradient the
momentum moves the policy. No evaluation is greedy, so there is no line to beat."""
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

import train_grpo as grpo
from plumbing.configurator import configure
from plumbing.devices import N_RANKS
from plumbing.optim import get_lr

# ---- texts and rewards are those of train_grpo.py ----
configure(vars(grpo), $words)
folder = grpo.find_network($generator)
tok = grpo.PretrainedTokenizer(folder, causal=True)
task = grpo.Task(grpo.open_data(vars(grpo)), tok, 'answer')
prompts = [row.whole[:row.n_prompt] for row in task.rows]
starts = torch.tensor([row.n_prompt for row in task.rows])
data = Dataset.from_list([{'row': i, 'prompt': record['prompt']}
                          for i, record in enumerate(task.records)])
grpo.devices.set_seed(0)
held_out = task.prompts('val', $eval_prompts).record
names = [*dict.fromkeys([*grpo.rewards, 'verify'] if task.verify else grpo.rewards)]


def reward_of(name):
    """Return a reward as TRL calls it."""
    def reward(completion_ids, row, **_):
        texts = [torch.tensor(prompts[i] + ids) for i, ids in zip(row, completion_ids)]
        k = trainer.num_generations if trainer.model.training else 4
        shown = task.prompts_of(torch.tensor(row[::k]))
        T = max(shown.tokens.size(1), *map(len, texts))
        texts = torch.stack([F.pad(x, (0, T - len(x)), value=tok.pad) for x in texts])  # (N, T)
        tokens = F.pad(shown.tokens, (0, T - shown.tokens.size(1)), value=tok.pad)
        is_after = torch.arange(T) >= starts[row, None]
        text, place = (is_after & (texts != tok.pad)).nonzero(as_tuple=True)
        shown = replace(shown, tokens=tokens, blank=is_after[::k])      # as plugins/causal.py
        r = grpo.Rollout(shown, k, texts, texts, text, place, texts[text, place], text)
        return grpo.score(r, None, [name], 0, 'train')[name].flatten().tolist()
    reward.__name__ = name
    return reward


class Trainer(GRPOTrainer):
    def _tokenize_prompts(self, texts):
        ids = dict(zip(data['prompt'], prompts))
        return [ids[text] for text in texts], None, {}

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda update: get_lr(
            update // updates, 1, $min_lr / $learning_rate, $warmup_iters, $max_iters))
        return self.lr_scheduler


# ---- knobs ----
updates = $epochs * $mini_batches       # of a step
assert $gradient_accumulation_steps % ($mini_batches * N_RANKS) == 0, "ranks cannot share a step"
settings = dict(
    # sampling: a step has all prompts of $gradient_accumulation_steps micro-steps
    num_generations=$group_size, temperature=$temperature, max_completion_length=$max_new_tokens,
    per_device_train_batch_size=$batch_size * $group_size,
    steps_per_generation=$gradient_accumulation_steps // N_RANKS,
    gradient_accumulation_steps=$gradient_accumulation_steps // $mini_batches // N_RANKS,
    num_iterations=$epochs, max_steps=$max_iters * updates,
    # the loss
    scale_rewards=$adv_norm, reward_weights=[grpo.rewards.get(name, 0.0) for name in names],
    loss_type=$loss_norm, epsilon=$clip_low, epsilon_high=$clip_high, beta=$kl_beta,
    entropy_coef=$entropy_coef, use_bias_correction_kl=False, disable_dropout=True,
    # the optimizer: AdamW
    learning_rate=$learning_rate, adam_beta2=0.95, max_grad_norm=$grad_clip,
    # the run
    eval_strategy='steps', eval_steps=$eval_interval * updates, eval_on_start=True,
    num_generations_eval=4, per_device_eval_batch_size=4 * $batch_size,
    save_steps=$eval_interval * updates, save_total_limit=1, logging_steps=$log_interval * updates,
    report_to='wandb' if $wandb_project else 'none', seed=$seed, bf16=$dtype == 'bfloat16',
    use_cpu=$device == 'cpu' or not torch.accelerator.is_available(),
    model_init_kwargs={'dtype': 'float32'},
    use_vllm=False, vllm_mode='colocate', vllm_importance_sampling_correction=False)
$settings
config = GRPOConfig($out_dir + '-trl', **settings)
$adapters
trainer = Trainer(folder, [reward_of(name) for name in names], config,
                  data.select(range(task.n_train)), data.select(held_out.tolist()), tok.theirs,
                  peft_config=adapters)
trainer.model.generation_config = GenerationConfig(eos_token_id=trainer.eos_token_ids)      # only

if __name__ == '__main__':
    assert not [*Path(config.output_dir).glob('checkpoint-*')], "an older run is there"
    trainer.train()
    if adapters:
        trainer.model = trainer.model.merge_and_unload()
    trainer.save_model()
    print(f"it opens in train_grpo.py: --generator={config.output_dir}")
'''


def files_of(x):
    """Return the files of a function, or of the methods of a class, and those of what it replaces,
    its `inner`. Files of the core are left out."""
    x = inspect.unwrap(x)
    parts = vars(x).values() if isinstance(x, type) else [x]
    functions = [*filter(inspect.isfunction, parts)]
    files = set() if functions else {repr(x)}
    for f in functions:
        files.add(os.path.relpath(f.__code__.co_filename, ROOT))
        for inner in filter(inspect.isfunction, f.__defaults__ or ()):
            files |= files_of(inner)
    return files - CORE


def script_of(words):
    """Return the script for words of a command line."""
    with contextlib.redirect_stdout(sys.stderr):        # the script is what is printed
        k = configure(vars(grpo), words)
    replaced = [vars(grpo)[name] for name, x in grpo._original.items()
                if callable(x) and vars(grpo)[name] is not x]
    files = set().union(*map(files_of, replaced))
    unknown = files - FILES.keys()
    assert not unknown, f"TRL has no equal of the functions of {', '.join(unknown)}"
    asked = set()
    for reward in vars(grpo).keys() & grpo.rewards.keys() - {'judge'}:
        asked |= inspect.signature(vars(grpo)[reward]).parameters.keys()
    facts = vars(grpo) | {'Path': Path, 'load': load, 'asked': asked,
                          'files': {Path(file).stem for file in files}}
    for condition in REFUSED.strip().splitlines():
        assert not eval(condition, facts), f"TRL cannot run this, because here: {condition}"
    settings = [f'settings |= dict({FILES[file]})      # {file}' for file in sorted(files)
                if FILES[file]]
    adapters = 'adapters = None'
    if 'plugins/lora.py' in files:
        adapters = """from peft import LoraConfig
adapters = LoraConfig(r=$lora_rank, lora_alpha=$lora_alpha, target_modules='all-linear')"""
    script = SCRIPT.replace('$settings', '\n'.join(settings)).replace('$adapters', adapters)
    k |= {'words': words, 'adv_norm': SCALE[k['adv_norm']], 'loss_norm': LOSS[k['loss_norm']]}
    k = {name: repr(value) for name, value in k.items()}
    return string.Template(script).substitute(k, command=shlex.join(words))


if __name__ == '__main__':
    print(script_of(sys.argv[1:]), end='')
