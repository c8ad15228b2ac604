"""The vocabulary of GPT-2, for `pretrain.py --tokenizer=gpt2`. Its first use downloads it."""
import tiktoken

from tasks import Tokenizer


class BytePairs(Tokenizer):
    """The byte pairs of GPT-2. Our ids are larger by one, because our eos is 0."""

    def __init__(self):
        self.pairs = tiktoken.get_encoding('gpt2')
        pieces = self.pairs.decode_tokens_bytes(range(self.pairs.eot_token))
        super().__init__([piece.decode('latin1') for piece in pieces])  # a character for each byte
        self.vocabulary = {'kind': 'gpt2'}

    def encode(self, text):
        return [1 + i for i in self.pairs.encode_ordinary(text)]

    def show(self, ids):
        return super().show(ids).encode('latin1').decode(errors='replace')
