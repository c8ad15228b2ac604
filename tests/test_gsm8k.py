"""GSM8K: files in the form of the benchmark, with problems of our own, and forms of numbers."""
import io
import json
import urllib.request

import pytest

from data import gsm8k

# question, steps, answer as the benchmark writes it, and a completion with this answer
PROBLEMS = [
    ("A hen lays 3 eggs a day. How many in 6 days?", "3*6=<<3*6=18>>18", "18", "So 3 x 6 = 18."),
    ("A town of 1,200 gets 34 more. How many?", "<<1200+34=1234>>1,234", "1,234", "It has 1234."),
    ("It is 7 degrees, then 12 colder. What now?", "7-12=-5", "-5", "Now it is -5 degrees."),
    ("A bike for $900 loses $1,000. What is left?", "900-1000=-100", "-100", "You have -$100."),
    ("2 of 4 doors are open. What percentage?", "2/4=.5", "50", "That is **50%**"),
    ("A flat costs 1250000 and 1. How much?", "1250000+1", "1,250,001", "It costs $1,250,001.00"),
    ("A box holds 5-10 pens. How many at most?", "10", "10", "At most 10; it holds 5-10"),
    ("Half of 9 pounds is?", "9/2=4.5, in ounces 72", "72", "The answer is:\n\\boxed{72}"),
    ("What is most of 7, 600, 8888?", "8888", "8,888", "The most of 7,600,8888"),
    ("How many are none?", "0", "0", "**Answer: 0 apples!**")]


def test_the_benchmark_is_downloaded_once_and_whole(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gsm8k, 'SIZES', {'train': 7, 'test': 3})
    lines = [json.dumps({'question': question, 'answer': f'{steps}\n#### {answer}'}) + '\n'
             for question, steps, answer, _ in PROBLEMS]
    # A part of the test problems comes first. A fourth download would raise StopIteration.
    downloads = iter((lines[:7], lines[8:], lines[7:]))
    monkeypatch.setattr(urllib.request, 'urlopen',
                        lambda url: io.BytesIO(''.join(next(downloads)).encode()))
    with pytest.raises(AssertionError, match='has 2 problems: expected 3'):
        gsm8k.texts()
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['gsm8k-train.jsonl']
    for _ in range(2):
        train, held_out = gsm8k.texts()
    assert len(train) == 7 and len(held_out) == 3
    assert held_out[0] == {'prompt': "Half of 9 pounds is?", 'answer': '72'}


def test_the_answer_is_the_last_number_of_a_completion():
    answers = [answer for _, _, answer, _ in PROBLEMS]
    for _, _, own, completion in PROBLEMS:
        assert [gsm8k.verify(completion, x) for x in answers] == [float(x == own) for x in answers]
    assert gsm8k.verify('I do not know', '0') == gsm8k.verify('', '0') == 0.0
