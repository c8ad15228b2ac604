"""What users of plugins, papers and texts get wrong."""
import shutil

import pytest

import train_grpo as grpo
from conftest import checkpoint_of, run, train
from data.text import known_words
from test_grpo import knobs, tiny  # noqa: F401 (fixtures)
from test_hf import folders, hf, opened, words_of  # noqa: F401 (fixtures)
from test_papers import toy_with


def test_an_accent_or_a_vowel_that_combines_is_a_part_of_its_word():
    """e\u0301 is two characters, and Hindi writes most of its vowels so."""
    for word in ('cafe\u0301s', '\u0939\u093f\u0928\u094d\u0926\u0940'):
        text = f'a {word} b'
        assert known_words({word}, ' ' * 2 + '_' * len(word) + '  ', text) == 1
        assert known_words({*word}, ' ' * 2 + '_' * len(word) + '  ', text) == 0


@pytest.mark.parametrize('content, said', {
    b'': 'expected more text', b'a\n\nb': 'expected more text', b'a\0b\0': 'of number 0',
    'caf\u00e9'.encode('latin-1'): 'expected text in UTF-8'}.items())
def test_a_text_that_cannot_be_read_is_refused_in_one_line(content, said, toy, tmp_path):
    path = tmp_path / 'mine.txt'
    path.write_bytes(content)
    code, _, error = run(*toy, f'--dataset={path}', f'--out_dir={tmp_path}/run')
    assert code == 1 and said in error and error.count('\n') == 1


def test_dapo_judges_groups_by_their_rewards_also_where_rloo_has_a_kl_in_them(knobs):  # noqa: F811
    """All rewards are equal, so all groups are, and three draws find no other ones."""
    policy, _, collect = toy_with('dapo rloo', 'one pass', knobs, batch_size=2, group_size=2)
    grpo.letters = lambda texts: [1.0] * len(texts)
    _, scores = collect(policy)
    assert scores['KL in reward'].any() and scores['advantage'].any()
    assert len(scores['reward']) == 3 * 2


def test_a_mask_token_is_a_blank_and_no_answer(opened):  # noqa: F811
    _, task, _ = opened('bert')
    whole, shown, _ = task.encode({'prompt': '9+[MASK]=1', 'answer': '9+2=1'})
    assert whole == task.tok.ids_of('9+2=1[SEP]') and shown.count(task.tok.blank) == 1
    with pytest.raises(AssertionError, match='is no answer'):
        task.encode({'prompt': '9+_=1', 'answer': '9+[MASK]=1'})


def test_a_run_says_which_folder_is_gone(folders, tmp_path):  # noqa: F811
    """That of its start, where it was."""
    start = shutil.copytree(folders / 'llama', tmp_path / 'start')
    words = [*words_of(folders, 'llama'), f'--generator={start}', '--max_iters=1']
    train(words, tmp_path / 'run')
    assert checkpoint_of(tmp_path / 'run')['args'] == {'folder': str(start)}
    start.rename(tmp_path / 'moved')
    for script, *more in (words + [f'--out_dir={tmp_path}/run', '--resume=True'],
                          ['sample.py', str(tmp_path / 'run')],
                          words + [f'--generator={tmp_path}/run', f'--out_dir={tmp_path}/next']):
        code, _, error = run(script, *more)
        assert code == 1 and f'there is no network {start}' in error and error.count('\n') == 1
