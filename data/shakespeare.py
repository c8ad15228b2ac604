"""Shakespeare, 1.1 MB, downloaded once to out/shakespeare.txt. In windows of 32 characters, runs of
four characters are blank. (For networks that continue a text write
--dataset=out/shakespeare.txt.)"""
import os
import urllib.request

from data.text import read, running_text, runs
from plumbing.process import Mistake

URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
PATH = 'out/shakespeare.txt'


def paragraphs():
    # A download that is interrupted must not leave half a file under this name.
    if not os.path.exists(PATH):
        os.makedirs('out', exist_ok=True)
        temporary = f'{PATH}.{os.getpid()}.tmp'         # each process has its own
        try:
            urllib.request.urlretrieve(URL, temporary)
        except OSError as e:
            raise Mistake(f"{URL} cannot be saved as {PATH}: {e}") from None
        os.replace(temporary, PATH)
    return read(PATH)


texts, verify = running_text(paragraphs, runs, 32)
