"""Shakespeare, 1.1 MB, downloaded once to out/shakespeare.txt. For another text give its file:
--dataset=FILE.txt."""
import os
import re
import urllib.request

URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
PATH = 'out/shakespeare.txt'


def texts():
    """Return training paragraphs, and the last tenth of all as held-out ones."""
    # A download that is interrupted must not leave half a file under this name.
    if not os.path.exists(PATH):
        os.makedirs('out', exist_ok=True)
        temporary = f'{PATH}.{os.getpid()}.tmp'         # each rank has its own
        urllib.request.urlretrieve(URL, temporary)
        os.replace(temporary, PATH)
    with open(PATH, encoding='utf-8') as file:
        paragraphs = re.split(r'\n\s*\n', file.read().strip())
    cut = len(paragraphs) * 9 // 10
    return paragraphs[:cut], paragraphs[cut:]
