"""The prose of data/docstrings.py, to be continued: 32 characters, and the 32 after them."""
from data import docstrings
from data.text import halves, running_text

texts, verify = running_text(docstrings.paragraphs, halves, 64)
