"""GSM8K: a file in the form of the benchmark, and forms of numbers."""
import io

import pytest

from data import gsm8k
from plumbing.process import Mistake

# an answer as the benchmark writes it, and a completion with this answer
ANSWERS = {
    '18': "So 3 x 6 = 18.", '1,234': "It has 1234.", '-5': "Now it is -5 degrees.",
    '-100': "You have -$100.", '50': "That is **50%**", '1,250,001': "It costs $1,250,001.00",
    '10': "At most 10; it holds 5-10", '72': "The answer is:\n\\boxed{72}",
    '8,888': "The most of 7,600,8888", '0': "**Answer: 0 apples!**"}


def test_the_benchmark_is_downloaded_once_and_whole(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gsm8k, 'SIZES', {'train': 7, 'test': 3})
    # A part of the test problems comes first. A fourth download would raise StopIteration.
    sizes = iter((7, 2, 3))
    line = b'{"question": "How many?", "answer": "<<4+5=9>>9 eggs\\n#### 9"}\n'
    monkeypatch.setattr('urllib.request.urlopen', lambda url: io.BytesIO(next(sizes) * line))
    with pytest.raises(Mistake, match='has 2 problems: expected 3'):
        gsm8k.texts()
    for _ in range(2):
        train, held_out = gsm8k.texts()
    assert len(train) == 7 and held_out == 3 * [{'prompt': 'How many?', 'answer': '9'}]


@pytest.mark.parametrize('own', ANSWERS)
def test_the_answer_is_the_last_number_of_a_completion(own):
    for answer in ANSWERS:
        assert gsm8k.verify(ANSWERS[own], answer) == float(answer == own)
    assert gsm8k.verify('I do not know', own) == 0
