"""Runs beside the promises: every config file, networks and their recipes, sample.py."""
import json
import os
import pathlib
import re
import shlex
import sys

import pytest
import torch

import pretrain
import train_grpo
from dataset import BLANK, Dataset, Tokenizer, read_texts
from judge import judge_sequences
from processes import (EQUATIONS, ROOT, command, fails, make_for_run, read_log, succeeds,
                       train, weights, write)
from pretrain import complete, load_network, read_recipe
from run.command import configure
from run.folder import load_checkpoint

# ---- a run ---------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_that_of_the_best_samples_not_of_the_best_greedy_score():
    path = write('mine.py', "rewards = {'lottery': 1.0}\ndef lottery(completions):\n"
                 "    return [ord(text[0]) * ord(text[1]) % 89 for text in completions]\n")
    train(path, '--eval_interval=1', '--max_iters=6')
    means = [line for line in read_log('run') if 'eval/reward' in line]
    best, greedy = [max((line[name], line['step']) for line in means)[1]
                    for name in ('eval/reward', 'greedy/reward')]
    assert load_checkpoint('run/best.pt')['step'] == best != greedy


def test_the_weight_of_the_kl_follows_its_target_by_a_share_for_each_completion():
    """A step has 8 prompts, and 4 completions of each."""
    train('--target_kl=0.01')
    lines = [line for line in read_log('run') if 'loss' in line]
    for line, later in zip(lines, lines[1:]):
        error = max(-0.2, min(0.2, line['kl'] / 0.01 - 1))
        expected = line['kl_beta'] * (1 + error * 32 / 10_000)
        assert later['kl_beta'] == pytest.approx(expected, rel=1e-9)
    assert lines[0]['kl'] < 1e-6 < 1e-4 < lines[-1]['kl']      # the reference stays at the start


def test_a_kl_in_the_reward_alone_has_a_reference_too():
    train('--rewards={"judge": 1.0, "kl": -0.5}', '--kl_beta=0', '--max_iters=2')
    *_, line, _ = read_log('run')
    assert line['mean_kl'] != 0


# ---- every config file ---------------------------------------------------------------------------


PRETRAINED = ('grpo_sums', 'grpo_problems', 'grpo_tools')
AFTER = {'grpo_cups20': ['config/grpo_think.py'], 'grpo_repeats': ['config/grpo_config.py']}


EXPERIMENTS = [path for folder in ('config', 'extras/studies')
               for path in sorted(ROOT.glob(f'{folder}/grpo_*.py')) if path.stem not in PRETRAINED]


@pytest.mark.parametrize('path', EXPERIMENTS, ids=lambda path: path.stem)
def test_every_config_file_runs_with_the_recipes_that_it_names(path):
    """The networks are made in this process first. The run must find them as it names them. For
    those of transformers see test_hf.py."""
    lines = [json.dumps({'prompt': f'{i}h{i}m=', 'answer': str(i % 3)}) for i in range(60)]
    write('mine.jsonl', '\n'.join(lines))                       # the dataset of grpo_pairs
    name = path.stem
    paths = [*AFTER.get(name, []), str(path.relative_to(ROOT))]
    if name in ('grpo_names', 'grpo_checker'):  # the toy prose has too few words
        paths.append('--dataset=mine.jsonl')
    if name == 'grpo_distill':                  # its teacher comes from another run
        paths.append('--reference=config/networks/generator_think.py')
    config, _ = configure(vars(train_grpo).copy(), paths)
    for knob in ('generator', 'judge', 'reference'):
        if config[knob]:
            make_for_run(config[knob], config['dataset'], config['blank_kind'])
    text = succeeds('train_grpo.py', *paths, '--max_iters=1', '--batch_size=2', '--group_size=4',
                    '--eval_prompts=2', '--log_interval=1', '--device=cpu', '--out_dir=run',
                    f"--gradient_accumulation_steps={config['mini_batches']}")
    assert 'mean_reward' in text and sys.executable not in text
    if name == 'grpo_pairs':                    # a typed prompt has no answer to compare with
        text = succeeds('sample.py', 'run', '--prompt=1h1m=')
        assert re.search(r"before +'1h1m='", text) and 'verify' not in text
    if name == 'grpo_order':                    # the line below a completion has its passes
        text = succeeds('sample.py', 'run', '--prompt=b ea dc=b_')
        assert re.search(r"(?m)'b ea dc=b[a-e]'\n +[1-9a-c]$", text)


@pytest.mark.parametrize('path', sorted(ROOT.glob('config/papers/*.py')),
                         ids=lambda path: path.stem)
def test_the_settings_of_a_paper_go_with_any_experiment(path):
    """The run says what it takes from where."""
    words = f'config/papers/{path.name}'
    text = train(words, '--rewards={"verify": 1.0}', '--epochs=2', '--max_iters=1')
    _, functions = configure(vars(train_grpo).copy(), [words])
    for name in functions:
        assert f'\n{name}() of {words}\n' in text


def test_a_run_of_a_paper_goes_on_and_is_shown_by_the_words_that_it_prints():
    words = ['config/papers/diffucoder.py', '--rewards={"verify": 1.0}']
    train(*words, '--max_iters=1')
    text = train(*words, '--max_iters=2', '--resume=True')
    fails('expected the words of its run', 'sample.py', 'run')
    words = shlex.split(re.search(r'python sample.py (run .*)', text)[1])
    assert 'after' in succeeds('sample.py', *words, '--num_samples=1')


# ---- networks by name ----------------------------------------------------------------------------


def test_a_network_is_another_one_if_its_texts_or_the_recipe_of_its_filler_change():
    filler = write('filler.py', 'n_layer = 1\n')
    classifier = write('classifier.py', "kind = 'classifier'\nagainst = 'filler.py'\n")
    # both get the dataset, and that its blanks are marked
    run = {'dataset': 'mine.jsonl', 'blank_kind': 'marked'}
    paths = []
    for change in ({}, {'a_': 'b_'}, {'c_': 'e_'}, {'n_layer = 1': 'n_layer = 2'}):
        lines = '{"prompt": "a_", "held_out": false}\n{"prompt": "c_", "held_out": true}\n'
        for old, new in change.items():
            lines = lines.replace(old, new)
            write(filler, pathlib.Path(filler).read_text().replace(old, new))
        write('mine.jsonl', lines + '{"prompt": "d_", "held_out": false}')
        read_texts.cache_clear()
        path, words = read_recipe(classifier, run)
        assert words == ['--dataset=mine.jsonl', '--blank_kind=marked', classifier, f'--out={path}']
        paths.append(path)
    assert len(set(paths)) == 4


def test_a_recipe_makes_its_network_once_and_another_one_if_a_knob_changes():
    flags = ['--dataset=marked.jsonl', '--blank_kind=marked', '--rewards={"verify": 1.0}',
             '--generator=generator_new.py', '--max_iters=0']
    for n_embd, is_made in ((32, True), (32, False), (16, True)):
        write('generator_new.py', f'max_iters = 1\nn_embd = {n_embd}\n')
        text = train(*flags)
        command = 'pretrain.py --dataset=marked.jsonl --blank_kind=marked generator_new.py --out='
        assert (command in text) == is_made
    succeeds('pretrain.py', *flags[:2], '--max_iters=1', '--n_embd=16', '--out=a.pt')
    assert weights('run').equal(weights('a.pt'))
    assert 'a.pt is there already' in succeeds('pretrain.py', '--out=a.pt')


def test_a_file_that_is_no_recipe_is_refused():
    path = write('rw.py', 'def good(completions):\n    return [1.0]\n')
    fails('rw.py has functions: expected a recipe', *command(f'--generator={path}'))


def test_pretraining_stops_at_a_share_of_right_samples():
    """The share that it prints is that of samples of the network that it writes."""
    text = succeeds('pretrain.py', 'config/networks/generator_arithmetic.py', '--max_iters=99',
                    '--dataset=marked.jsonl', '--blank_kind=marked', '--batch_size=32',
                    '--out=a.pt', '--eval_interval=2', '--stop_at=0.2')
    *before, last = map(float, re.findall(r'held-out verify ([\d.]+)', text))
    assert max(before) < 0.2 <= last < 1 and 'step 99' not in text
    generator, tok = load_network('a.pt')
    data = Dataset(*read_texts('marked.jsonl')[:2], tok, False, blank_kind='marked')
    cases = complete(generator, data.prompts('val', 64, 1, 0)).cases()
    n_right = sum(case['completion'] == case['answer'] for case in cases)
    assert last == pytest.approx(n_right / len(cases), abs=0.001)


LEARNS = {                  # a guess costs log 13 = 2.56 nats at first, a label log 2 = 0.69
    'generator_arithmetic --dataset=marked.jsonl --blank_kind=marked': 1.0,
    'generator_equations': 2.2,
    'judge_classifier': 0.66,
    'judge_labels --dataset=labels.jsonl --tokenizer=char --block_size=4': 0.5,
}


@pytest.mark.parametrize('words', LEARNS)
def test_pretraining_learns(words):
    lines = [f'{{"prompt": "{i:03}", "label": {i % 2}}}\n' for i in range(999)]
    write('labels.jsonl', ''.join(lines))
    recipe, *flags = words.split()
    text = succeeds('pretrain.py', f'config/networks/{recipe}.py', '--max_iters=60',
                    '--batch_size=32', '--dtype=float32', *flags, '--out=a.pt')
    *_, loss = re.findall(r'held-out loss (\S+)', text)
    assert float(loss) < LEARNS[words]
    assert ('held-out verify' in text) == recipe.startswith('generator')
    if recipe == 'judge_classifier':            # real text scores higher than filled text
        judge, tok = load_network('a.pt')
        prompts = Dataset(*read_texts('arithmetic')[:2], tok, False).prompts('val', 300, 1, 1)
        r = complete(load_network('out/generator_arithmetic.pt')[0], prompts)
        real, filled = [judge_sequences(judge, sequences, None).mean()
                        for sequences in (prompts.tokens, r.sequences)]
        assert real > filled


def test_the_first_step_of_pretraining_is_the_first_of_its_warm_up():
    """The first step of AdamW moves a weight by the learning rate, and the output layer is 0."""
    succeeds('pretrain.py', 'config/networks/generator_arithmetic.py', '--max_iters=1',
             '--warmup_iters=3', '--learning_rate=0.004', '--out=a.pt')
    head = load_checkpoint('a.pt')['model']['head.weight']
    assert head.abs().max().item() == pytest.approx(0.001, rel=1e-3)


def test_the_held_out_loss_is_that_of_held_out_texts_and_its_lowest_is_named():
    """Here they are unlike the others."""
    write('opposite.jsonl', '{"prompt": "a", "answer": "b", "held_out": false}\n'
          '{"prompt": "b", "answer": "a", "held_out": true}\n')
    text = succeeds('pretrain.py', '--dataset=opposite.jsonl', '--kind=causal', '--max_iters=100',
                    '--n_layer=1', '--n_embd=32', '--batch_size=16', '--dtype=float32',
                    '--eval_interval=5', '--out=a.pt')
    lines = re.findall(r'step (\d+) *\| loss (\S+) \| held-out loss (\S+)', text)
    assert float(lines[-1][1]) < 1 < float(lines[-1][2])        # a guess costs log 3 = 1.1
    lowest = min(lines, key=lambda line: float(line[2]))[0]
    assert f'lowest after step {lowest}' in text and f'--max_iters={lowest} ends there' in text
    assert 0 < int(lowest) < 80


# ---- signals and resuming ------------------------------------------------------------------------


def test_a_resumed_run_takes_more_steps_and_refuses_another_experiment():
    """No network is made before a run is refused."""
    fails('there is no run', *command('--resume=True'))
    train('--max_iters=2')
    log = pathlib.Path('run/log.jsonl').read_text()
    for words, flag in (
            ('keeps its group_size, 4, not 8', '--group_size=8'),
            ("there is no ['out/other-", '--generator=' + write('other.py', 'seed = 2'))):
        text = fails(words, *command('--resume=True', flag))
        assert sys.executable not in text
    assert pathlib.Path('run/log.jsonl').read_text() == log
    train('--resume=True', '--max_iters=5')
    assert load_checkpoint('run')['step'] == 5
    steps = [(line['step'], 'loss' in line) for line in read_log('run')]
    # the evaluation after the last step of the first command stays
    assert steps == [(0, False), (0, True), (1, True), (2, False), (2, True), (3, True), (4, False),
                     (4, True), (5, False)]


# ---- what goes wrong -----------------------------------------------------------------------------


MISTAKES_IN_RECIPES = {
    '--n_embd=30': 'n_embd = 30', '--kind=both': 'both', '--tokenizer=x': "'x'",
    '--learning_rate=1e30': 'finite', '--blank_high=2.0': 'blank_high',
    '--stop_at=20': 'stop_at = 20.0',
    '--kind=classifier': 'labels',              # sums are no labels
    '--blank_kind=marked --dataset=unanswered.jsonl': 'without an answer',
    '--kind=classifier --stop_at=0.5 --dataset=failure_labels': 'stop_at',
}


def test_prompts_without_an_answer_need_the_length_of_completions():
    write('asked.jsonl', '\n'.join(f'{{"prompt": "{i}+1="}}' for i in range(99)))
    flags = [f'--generator={EQUATIONS}', '--dataset=asked.jsonl', '--rewards={"distinct": 1.0}']
    fails('expected --max_new_tokens', *command(*flags))
    fails('needs 103 tokens; expected 10', *command(*flags, '--max_new_tokens=99'))
    train(*flags, '--max_new_tokens=3', '--max_iters=1')
    assert read_log('run')[0]['eval/tokens'] > 1


@pytest.mark.parametrize('flags', MISTAKES_IN_RECIPES)
def test_a_mistake_in_a_recipe_ends_with_a_sentence_and_writes_nothing(flags):
    write('unanswered.jsonl', '\n'.join(f'{{"prompt": "{i}_"}}' for i in range(99)))
    fails(MISTAKES_IN_RECIPES[flags], 'pretrain.py', 'config/networks/generator_arithmetic.py',
          *flags.split(), '--out=new/a.pt')
    assert not os.path.exists('new/a.pt')


# ---- sample.py -----------------------------------------------------------------------------------


def test_sample_shows_the_numbers_that_the_run_prints():
    """verify comes first, and an empty line follows each prompt."""
    text = train('--temperature=0.7', '--top_k=3',
                 '--rewards={"judge": 1.0, "verify": 0.5, "kl": -0.1}')
    last, = re.findall(r'(?m)^step 4 +(\| verify .*)$', text)
    assert 'python sample.py run' in text and 'look at it: python -m extras.page run\n' in text
    text = succeeds('sample.py', 'run', '--num_samples=2')
    assert re.search(rf'(?m)^after +{re.escape(last)}$', text)
    assert len(re.findall('(?m)^(?:before|after) +verify +judge ', text)) == 4
    # each network is asked itself: only the policy has left the reference
    kl_of = {'before': [], 'after': []}
    for line in text.split('\n\n\n')[0].splitlines():
        if line.startswith(('before ', 'after ')):
            label = line.split()[0]
            column = line.split().index('kl') + 1 if ' kl ' in line else None
        elif column and ' x ' in line:
            kl_of[label].append(float(line.split()[column]))
    assert not any(kl_of['before']) and any(kl_of['after'])
    text = succeeds('sample.py', 'out/generator_arithmetic.pt', '--eval_prompts=4')
    assert re.search(r'(?m)^before +verify +distinct', text) and 'after' not in text
    text = succeeds('sample.py', EQUATIONS, '--prompt=12+35=')
    assert re.search(r"(?m)^before +distinct +'12\+35='", text)        # it has no answer
    fails("'x'", 'sample.py', 'run', '--prompt=x_')
    n_files = len(os.listdir('out'))            # it looks, and makes nothing
    fails('sample.py train no network', 'sample.py', 'run',
          '--generator=config/networks/judge_prose.py')
    assert len(os.listdir('out')) == n_files


def test_samples_jsonl_has_each_token_before_and_after_the_update():
    """Groups of training steps; and the first eight held-out prompts."""
    train('--temperature=0.7', '--max_iters=2', '--eval_interval=1', '--log_interval=2',
          '--rewards={"verify": 0.5, "distinct": 1.0}')
    samples = [json.loads(line) for line in open('run/samples.jsonl')]
    steps = [0] * 32 + [0] * 4 + [1] * 32 + [2] * 32
    assert [sample['step'] for sample in samples] == steps
    assert len({sample['prompt'] for sample in samples[:32]}) == 8
    train('--temperature=0.7', '--max_iters=1', '--rewards={"verify": 0.5, "distinct": 1.0}')
    networks = [load_network(path, 'cpu')[0] for path in ('out/generator_arithmetic.pt', 'run')]
    tok = Tokenizer(**load_checkpoint('run')['vocabulary'])
    for sample in samples[32:36]:
        scores = sample['scores']
        assert list(scores) == ['reward', 'verify', 'distinct', 'advantage']
        assert scores['reward'] == pytest.approx(0.5 * scores['verify'] + scores['distinct'])
        # a line feed is an eos, and one at the end is not shown
        prompt, filled = [[(tok.ids | {BLANK: tok.blank_id, '\n': tok.eos})[char] for char in text]
                          for text in (sample['prompt'] + '\n', sample['completion'] + '\n')]
        places = [t for t, id in enumerate(prompt) if id == tok.blank_id]
        for network, column in zip(networks, (2, 3)):
            logits = network.logits(network(torch.tensor([prompt]))[0])
            logp = (logits / 0.7).log_softmax(-1)
            assert [logp[t, filled[t]].item() for t in places] == pytest.approx(
                [piece[column] for piece in sample['pieces'] if type(piece) is list], abs=1e-4)


def test_sample_asks_for_the_file_of_a_reward():
    write('theirs.py', "rewards = {'charm': 1.0}\nopen('was-here', 'a').write('x')\n"
          "temperature *= 0.5\n"                # and not once more in sample.py
          "def charm(prompts, completions): return [temperature] * len(prompts)\n")
    train('theirs.py', '--max_iters=0')
    fails('expected the words of its run', 'sample.py', 'run', '--device=cpu')     # not others
    assert pathlib.Path('was-here').read_text() == 'x'
    words = load_checkpoint('run')['words']
    text = succeeds('sample.py', 'run', '--num_samples=1', *words)
    assert len(re.findall(r'(?m)^(?:before|after) .*\| charm 0.500', text)) == 2
    with open('theirs.py', 'a') as file:
        file.write('# other')
    fails('was edited since', 'sample.py', 'run', *words)
