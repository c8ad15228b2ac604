"""The prose of data/docstrings.py, to be continued: 32 characters, and the 32 that follow."""
from data import docstrings
from data.text import halves, running_text

texts, verify = running_text(docstrings.paragraphs, halves, 64)
