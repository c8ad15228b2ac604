"""Shakespeare, 1.1 MB, downloaded once to out/shakespeare.txt. For another text give its file:
--dataset=FILE.txt."""
import os
import urllib.request

from data import prose

URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
PATH = 'out/shakespeare.txt'


def texts():
    """Return training paragraphs, and the last tenth of all as held-out ones."""
    # A download that is interrupted must not leave half a file under this name.
    if not os.path.exists(PATH):
        os.makedirs('out', exist_ok=True)
        urllib.request.urlretrieve(URL, f'{PATH}.tmp')
        os.replace(f'{PATH}.tmp', PATH)
    paragraphs = prose.paragraphs_of(PATH)
    cut = len(paragraphs) * 9 // 10
    return paragraphs[:cut], paragraphs[cut:]
