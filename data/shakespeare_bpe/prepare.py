"""Shakespeare, or any text, in GPT-2's byte pairs: data/shakespeare/prepare.py, other tokenizer.

    python data/shakespeare_bpe/prepare.py --input=my.txt"""
import functools
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from data.shakespeare import prepare

verify = functools.partial(prepare.known_words, name='shakespeare_bpe')

if __name__ == "__main__":
    prepare.tokenizer = 'gpt2'
    prepare.main('shakespeare_bpe')
