"""Shakespeare, or any UTF-8 text of your own.

    python data/shakespeare/prepare.py                                # downloads 1.1 MB
    python data/shakespeare/prepare.py --input=my.txt --tokenizer=gpt2

--tokenizer=char (default): one symbol per character. gpt2: GPT-2's byte pairs, by tiktoken;
data/shakespeare_bpe/ is this script with that default. Paragraphs are split by empty lines, a
line's end is an end of row, and the last tenth of the paragraphs is held out."""
import functools
import os
import re
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from config.configurator import fail
from data.dataset import known_words, write_corpus

URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
verify = functools.partial(known_words, folder=HERE)

def main(folder, tokenizer):
    """Prepares a text for a folder of data/, as the command line says."""
    options = {'--input': os.path.join(HERE, 'input.txt'), '--tokenizer': tokenizer}
    for key, _, value in (arg.partition('=') for arg in sys.argv[1:]):
        if key not in options or key == '--tokenizer' and value not in ('char', 'gpt2'):
            fail(f"{key}={value}: expected --input=FILE or --tokenizer=char|gpt2")
        options[key] = value
    path, tokenizer = options.values()
    if path == os.path.join(HERE, 'input.txt') and not os.path.isfile(path):
        try:
            with urllib.request.urlopen(URL, timeout=30) as page, open(f'{path}.tmp', 'wb') as f:
                f.write(page.read())
            os.replace(f'{path}.tmp', path)     # kept for the next time
        except OSError as e:
            fail(f"no network ({e}); save any text and give it as --input=FILE")
    try:
        with open(path, encoding='utf-8') as f:
            parts = [t for t in re.split(r'\n\s*\n', f.read()) if t.strip()]
    except (OSError, UnicodeDecodeError) as e:
        fail(f"--input={path}: {e}; expected a UTF-8 text file")
    if len(parts) < 10:
        fail(f"{len(parts)} paragraphs (split by empty lines); expected at least 10")
    cut = len(parts) * 9 // 10
    write_corpus(folder, 'windows', parts[:cut], parts[cut:], tokenizer)

if __name__ == "__main__":
    main(HERE, 'char')
