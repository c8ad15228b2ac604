"""The command line of a script without knobs."""
import sys

from run.command import show_error


def words_of(doc, at_least=0):
    """Return the words of the command line of a script without knobs. If there are fewer, or to
    --help, print its docstring and exit."""
    sys.excepthook = show_error
    words = sys.argv[1:]
    if {'-h', '--help'} & set(words):
        print(doc)
        sys.exit()
    if len(words) < at_least:
        sys.exit(doc)
    return words
