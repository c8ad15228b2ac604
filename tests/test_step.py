"""The page docs/step.md, which shows and explains the output of extras/step.py."""
import re
from pathlib import Path

from runs import finish


def test_the_page_shows_exactly_what_the_script_prints():
    """If this fails, paste the new blocks, and read the sentences between them again: they quote
    numbers of the blocks."""
    blocks = re.findall(r'(?s)^```text\n(.*?)^```$', Path('docs/step.md').read_text(), re.M)
    assert '\n'.join(blocks) == finish('extras/step.py')
