"""Shakespeare, or any UTF-8 text of your own.

    python data/shakespeare/prepare.py                                # downloads 1.1 MB
    python data/shakespeare/prepare.py --input=my.txt --tokenizer=gpt2

Paragraphs are split by empty lines, and the last tenth of them is held out; a line's end is an end
of row. data/shakespeare_bpe/ is this script with the other tokenizer."""
import functools, os, pathlib, re, sys, urllib.request
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from config.configurator import configure, fail
from config.run import check
from data.dataset import known_words, write_corpus

input = ''                  # text file; '': data/shakespeare/input.txt, downloaded if missing
tokenizer = 'char'          # 'char': one symbol per character | 'gpt2': byte pairs, by tiktoken
URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
verify = functools.partial(known_words, folder=HERE)

def main(folder):
    """Prepares the text that the command line asks for, in a folder of data/."""
    check({"tokenizer in ('char', 'gpt2')": ''}, configure(globals()))
    path = pathlib.Path(input or os.path.join(HERE, 'input.txt'))
    try:
        if not input and not path.is_file():
            path.write_bytes(urllib.request.urlopen(URL, timeout=30).read())
        parts = [t for t in re.split(r'\n\s*\n', path.read_text('utf-8')) if t.strip()]
    except (OSError, UnicodeDecodeError) as e:
        fail(f"{path}: {e}; give any UTF-8 text as --input=FILE")
    if len(parts) < 10:
        fail(f"{len(parts)} paragraphs (split by empty lines); expected at least 10")
    cut = len(parts) * 9 // 10
    write_corpus(folder, 'windows', parts[:cut], parts[cut:], tokenizer)

if __name__ == "__main__":
    main(HERE)
