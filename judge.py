"""The judge: a frozen network that has read good texts. A causal one scores a text by the mean
log-probability of its tokens, in nats."""
import torch
import torch.nn.functional as F

from model import distinct


@torch.no_grad()
def judge_scores(judge, sequences):
    """Return the scores (N,) of sequences (N, T)."""
    assert judge.causal, "the judge fills blanks, and sees what it scores: expected a causal one"
    # Equal texts go through the network once. This saves time, and their scores are equal to the
    # last bit: a division by the std of a group would make a rounding error as large as a
    # difference.
    first, kind = distinct(sequences)
    texts = sequences[first]                                                    # (S, T)
    is_text = texts != judge.pad_id
    logits = judge.logits(judge(texts)[is_text])                                # (tokens, V)
    logp = torch.zeros(texts.shape, device=texts.device)
    logp[is_text] = -F.cross_entropy(logits, texts[is_text], reduction='none')
    return (logp.sum(1) / is_text.sum(1))[kind]
