"""Shakespeare, or any UTF-8 text of your own.

    python data/shakespeare/prepare.py                                # downloads 1.1 MB
    python data/shakespeare/prepare.py --input=my.txt --tokenizer=gpt2

--tokenizer=char (default): one symbol per character. gpt2: GPT-2's byte pairs, by tiktoken;
data/shakespeare_bpe/ is this script with that default. Paragraphs are split by empty lines, a
line's end is an end of row, and the last tenth of the paragraphs is held out.
"""
import os
import re
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from data.dataset import known_words, write_corpus

URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'


def verify(prompt, completion):
    """The share of the words touched by a blank that occur in the training text, in [0, 1]."""
    return known_words(prompt, completion, HERE)


def read(path):
    """The text of a file, or of the download, which is kept as input.txt for the next time."""
    if not path:
        path = os.path.join(HERE, 'input.txt')
        if not os.path.isfile(path):
            try:
                with urllib.request.urlopen(URL, timeout=30) as response:
                    text = response.read()
            except OSError as e:
                sys.exit(f"error: no network ({e}); save any text and give it as --input=FILE")
            with open(path + '.tmp', 'wb') as f:
                f.write(text)
            os.replace(path + '.tmp', path)
    try:
        with open(path, encoding='utf-8') as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as e:
        sys.exit(f"error: --input={path}: {e}; expected a UTF-8 text file")


def main(folder, tokenizer):
    """Prepares a text for a folder of data/, as the command line says."""
    options = {'--input': '', '--tokenizer': tokenizer}
    for key, _, value in (arg.partition('=') for arg in sys.argv[1:]):
        if key not in options or key == '--tokenizer' and value not in ('char', 'gpt2'):
            sys.exit(f"error: {key}={value}: expected --input=FILE or --tokenizer=char|gpt2")
        options[key] = value
    parts = [t for t in re.split(r'\n\s*\n', read(options['--input'])) if t.strip()]
    if len(parts) < 10:
        sys.exit(f"error: {len(parts)} paragraphs (split by empty lines); expected at least 10")
    cut = len(parts) * 9 // 10
    write_corpus(folder, 'windows', parts[:cut], parts[cut:], options['--tokenizer'])


if __name__ == "__main__":
    main(HERE, 'char')
