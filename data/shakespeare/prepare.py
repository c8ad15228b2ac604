"""Shakespeare, or any UTF-8 text of your own.

    python data/shakespeare/prepare.py                                # downloads 1.1 MB
    python data/shakespeare/prepare.py --input=my.txt --tokenizer=gpt2

Paragraphs are split by empty lines, and the last tenth of them is held out; a line's end is an end
of row. data/shakespeare_bpe/ is this script with the other tokenizer."""
import functools
import os
import re
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from common import configure, fail, new_file
from data.dataset import write_corpus
from data.docstrings.prepare import known_words

input = ''                  # text file; '': data/shakespeare/input.txt, downloaded if missing
tokenizer = 'char'          # 'char' | 'gpt2': byte pairs, by tiktoken | corpus that has one
URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
verify = functools.partial(known_words, name='shakespeare')


def main(name):
    """Prepares the text that the command line asks for, as the corpus data/<name>."""
    configure(globals())
    path = input or os.path.join(HERE, 'input.txt')
    try:
        if input == '' and not os.path.exists(path):
            text = urllib.request.urlopen(URL, timeout=30).read()
            with new_file(path) as file:
                file.write(text)
        with open(path, encoding='utf-8-sig') as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as e:
        fail(f"{path}: {e}; give any UTF-8 text as --input=FILE")
    parts = [part for part in re.split(r'\n\s*\n', text) if part.strip()]
    if len(parts) < 10:
        fail(f"{path}: {len(parts)} paragraphs (split by empty lines); expected at least 10")
    cut = len(parts) * 9 // 10
    write_corpus(name, 'windows', parts[:cut], parts[cut:], tokenizer)


if __name__ == "__main__":
    main('shakespeare')
