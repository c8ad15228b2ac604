"""Text as rows of token ids, batches of rows, and blanks in them."""
import functools, hashlib, itertools, json, os, pathlib, re, runpy, zlib
import numpy as np
import torch
from config.configurator import fail
from config.run import run

HERE = os.path.dirname(os.path.abspath(__file__))
BLANK = '_'             # how a blank is written; an underscore in a corpus is stored as '-'
SPECIALS = ('mask', 'bos', 'pad')       # ids V, V + 1, V + 2; models have no output for them

def draws(seed, purpose, step=0):
    """A generator of random numbers that depends on (seed, purpose, step) and on nothing else."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), step])

class Tokenizer:
    """Characters, or GPT-2's byte pairs. base = V, the ids that a model can produce."""
    def __init__(self, kind, chars=''):
        if kind == 'gpt2':
            try:
                import tiktoken
                gpt2 = tiktoken.get_encoding('gpt2')
            except Exception as e:
                fail(f"no GPT-2 vocabulary ({type(e).__name__}): it needs tiktoken and, the first "
                     "time, a network; --tokenizer=char needs neither")
            ours = {f'<|{name}|>': gpt2.n_vocab + i for i, name in enumerate(SPECIALS)}
            self.bpe = tiktoken.Encoding(       # extended in the way that tiktoken documents
                'gpt2_blanks', pat_str=gpt2._pat_str, mergeable_ranks=gpt2._mergeable_ranks,
                special_tokens=gpt2._special_tokens | ours)
            self.eos = gpt2.eot_token           # the last id
            pieces = [*gpt2.decode_tokens_bytes(range(self.eos)), b'\n']
        else:
            pieces, self.ids = [c.encode() for c in chars], {c: i for i, c in enumerate(chars)}
            self.eos = self.ids['\n']
        self.kind, self.base, self.size = kind, len(pieces), len(pieces) + len(SPECIALS)
        self.mask, self.bos, self.pad = range(self.base, self.size)
        self.pieces = [*pieces, BLANK.encode(), b'', b'']       # how ids are shown

    def encode(self, text, blanks=False):
        """List of ids; with blanks=True each '_' becomes the mask id. Raises ValueError."""
        if blanks:
            return sum(([self.mask] + self.encode(part) for part in text.split(BLANK)), [])[1:]
        if self.kind == 'gpt2':
            return self.bpe.encode_ordinary(text)
        if strange := ''.join(sorted(set(text) - set(self.ids))):
            raise ValueError(f"characters {strange!r} not in the vocabulary {''.join(self.ids)!r}")
        return [self.ids[c] for c in text]

    def decode(self, ids):
        """Text; blanks are shown as '_', an end of row as a line feed, BOS and padding not."""
        return b''.join(self.pieces[i] for i in ids).decode(errors='replace')

def write_corpus(folder, unit, train, val, tokenizer='char'):
    """Writes train.bin and val.bin, the ids (uint16) of two lists of texts, each with its end of
    row, and meta.json. unit: 'rows' (a text is a row) or 'windows' (rows are cut anywhere)."""
    train, val = ([t.replace(BLANK, '-') for t in part] for part in (train, val))
    chars = ''.join(sorted({'\n'}.union(*train, *val))) if tokenizer == 'char' else ''
    meta, tok = {'tokenizer': tokenizer, 'chars': chars, 'unit': unit}, Tokenizer(tokenizer, chars)
    for split, part in (('train', train), ('val', val)):
        ids = np.array([i for t in part for i in tok.encode(t) + [tok.eos]], dtype=np.uint16)
        ids.tofile(f'{folder}/{split}.bin.tmp')
        meta[split] = dict(texts=len(part), tokens=len(ids), sha256=hashlib.sha256(ids).hexdigest())
    pathlib.Path(folder, 'meta.json.tmp').write_text(json.dumps(meta, indent=1))
    for file in ('train.bin', 'val.bin', 'meta.json'):          # meta.json last: it says "complete"
        os.replace(f'{folder}/{file}.tmp', f'{folder}/{file}')
    print(f"{os.path.basename(folder)}: {len(train)} texts, {len(val)} held out, V = {tok.base}")

class Dataset:
    """A prepared corpus. verify: (prompt, completion) -> [0, 1], if its prepare.py has one."""
    def __init__(self, name, prepare=False):
        self.name, self.folder, script = name, f'{HERE}/{name}', f'data/{name}/prepare.py'
        known = sorted(path.parent.name for path in pathlib.Path(HERE).glob('*/prepare.py'))
        if name not in known:
            fail(f"no dataset '{name}'; there are {', '.join(known)}")
        meta, self.ids, self.edges = pathlib.Path(self.folder, 'meta.json'), {}, {}
        if prepare and not meta.is_file():
            run(['python', script])
        try:
            self.meta = json.loads(meta.read_bytes())
            self.tok = Tokenizer(self.meta['tokenizer'], self.meta['chars'])
            for split in ('train', 'val'):
                ids = self.ids[split] = np.memmap(f'{self.folder}/{split}.bin', np.uint16, 'r')
                self.edges[split] = np.append(0, np.flatnonzero(ids == self.tok.eos) + 1)
                if len(ids) != (n := self.meta[split]['tokens']):
                    raise ValueError(f"{split}.bin has {len(ids)} tokens, meta.json says {n}")
        except (OSError, ValueError, KeyError) as e:
            fail(f"dataset '{name}' is not prepared, or damaged ({e}); run: python {script}")
        self.fingerprint = hashlib.sha256(meta.read_bytes()).hexdigest()[:16]
        self.verify = runpy.run_path(f'{self.folder}/prepare.py').get('verify')

    def batch(self, split, n, block_size, rng):
        """n random rows, int64 (n, T = block_size): windows of the text, or rows with padding."""
        ids, edges, windows = self.ids[split], self.edges[split], self.meta['unit'] == 'windows'
        pick = rng.integers(len(ids) - block_size + 1 if windows else len(edges) - 1, size=(n, 1))
        start, stop = (pick, pick + block_size) if windows else (edges[pick], edges[pick + 1])
        at = start + np.arange(block_size)                                      # (n, T)
        return torch.from_numpy(np.where(at < stop, ids.take(at, mode='clip'), self.tok.pad)).long()

def blanks(tokens, tok, rng, kind='random', low=0.2, high=0.6, span=4):
    """Mask (n, T) bool of what to fill: a share uniform in [low, high] of each row, at least one.
    kind: 'random' | 'span': runs | 'suffix': it alone has the row's end. Raises ValueError."""
    if kind not in ('random', 'span', 'suffix') or not 0 <= low <= high <= 1 or span < 1:
        raise ValueError(f"blanks: kind={kind!r}, low={low}, high={high}, span={span}")
    (n, T), width = tokens.shape, span if kind == 'span' else 1
    free = ((tokens != tok.pad) & ((tokens != tok.eos) | (kind == 'suffix'))).numpy()   # (n, T)
    count = rng.uniform(low, high, size=(n, 1)) * free.sum(1, keepdims=True)    # (n, 1)
    cell = (np.arange(T) + rng.integers(width, size=(n, 1))) // width           # (n, T) which run
    key = np.take_along_axis(rng.random((n, T // width + 2)), cell, 1)          # a key per run
    key = np.where(free, -np.arange(T) if kind == 'suffix' else key, 2.0)       # lowest: blank
    rank = key.argsort(1, kind='stable').argsort(1, kind='stable')              # (n, T)
    return torch.from_numpy((rank < np.rint(count).clip(1)) & free)

def texts(tok, tokens, mask, rows, causal):
    """Two lists of N strings, without a closing line feed, of tokens, mask (B, T) and rows (N, T):
    rows with '_' for blanks, and filled; causal: what is left of the first blank, and the rest."""
    asked, left, right = tokens.cpu().masked_fill(mask.cpu(), tok.mask).tolist(), [], []    # (B, T)
    for ids, group in zip(asked, rows.view(len(asked), -1, rows.size(1)).tolist()):     # (B, k, T)
        first = ids.index(tok.mask) if causal else None
        prompt = tok.decode(ids[:first])
        end = '\n' if causal or prompt.endswith('\n') else ''       # a blank one is not closing
        left += [prompt if causal else prompt.removesuffix(end)] * len(group)
        right += [tok.decode(row[first:]).removesuffix(end) for row in group]
    return left, right

def prompts(data, c, split, n, rng, wanted=None):
    """n prompts under the knobs c: tokens (n, T), mask (n, T) bool, uniforms (n, T, k) in [0, 1).
    wanted(prompt, original) -> bool, if given, decides from the text which rows are taken."""
    found, tries, causal, kind = [], 0, c['mode'] == 'causal', c['blank_kind']
    while len(found) < n:
        if (tries := tries + 1) > 500:
            fail(f"prompt_filter took fewer than {n} of {500 * n} rows")
        tokens = data.batch(split, n, c['block_size'], rng)
        mask = blanks(tokens, data.tok, rng, kind, c['blank_low'], c['blank_high'], c['blank_span'])
        good = map(wanted, *texts(data.tok, tokens, mask, tokens, causal)) if wanted else [True] * n
        found += itertools.compress(zip(tokens, mask), good)
    tokens, mask = map(torch.stack, zip(*found[:n]))
    if causal and kind == 'suffix':             # may be longer than the original
        at, first = torch.arange(tokens.size(1)), mask.int().argmax(1, keepdim=True)
        stop = first + (c['max_new_tokens'] or tokens.size(1))
        mask, tokens = (at >= first) & (at < stop), tokens.masked_fill(at >= stop, data.tok.pad)
    return tokens, mask, torch.from_numpy(rng.random((*mask.shape, c['group_size']), np.float32))

@functools.cache
def vocabulary(folder):
    """Words of a corpus's training text, ' so ', and what row edges leave: ' s', 'o ' and 'o'."""
    data = Dataset(os.path.basename(folder))
    words = {f' {word} ' for word in re.findall('[A-Za-z]+', data.tok.decode(data.ids['train']))}
    return {part for w in words for i in range(len(w)) for part in (w[:i + 1], w[i:], w[i:-1])}

def known_words(prompt, completion, folder):
    """Share of the words with a blank in or beside them that the training text has; 1.0 if none.
    One cut by the row's edge must begin (or end) a word; nothing between two spaces is unknown."""
    if BLANK not in prompt:                     # what follows a prompt is one blank
        prompt, completion = prompt + BLANK, prompt + completion
    spans = [match.span() for match in re.finditer(f'{BLANK}+', prompt)]
    if len(prompt) != len(completion):          # not one character each: find what was given
        match = re.fullmatch(re.sub(f'{BLANK}+', '(.*?)', re.escape(prompt)), completion, re.DOTALL)
        spans = match.regs[1:] if match else [(0, len(completion))]
    hits, spaced = [], re.sub('[^A-Za-z]', ' ', completion)
    for word in re.finditer(r'[A-Za-z]+|(?<= )(?= )', completion):
        if any(word.start() <= stop and start <= word.end() for start, stop in spans):
            hits.append(spaced[max(0, word.start() - 1):word.end() + 1] in vocabulary(folder))
    return sum(hits) / len(hits) if hits else 1.0
