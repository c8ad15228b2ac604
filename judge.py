"""The judge: a frozen network that has read good texts, or a classifier, which has learned from
texts with labels. A causal network scores a text by the mean log-probability of its tokens, in
nats, and a classifier by P(label = 1)."""
import torch
import torch.nn.functional as F

from model import distinct


@torch.no_grad()
def judge_scores(judge, sequences):
    """Return the scores (N,) of sequences (N, T)."""
    # Equal texts go through the network once. This saves time, and their scores are equal to the
    # last bit: a division by the std of a group would make a rounding error as large as a
    # difference.
    example, kind = distinct(sequences)
    texts = sequences[example]                                                  # (S, T)
    if not judge.causal:
        # A classifier uses the first output alone: the weights of the others are 0.
        assert not judge.head.weight[1:].any(), (
            "the judge fills blanks, and sees what it scores: expected a causal one, or a "
            "classifier")
        return label_logits(judge, texts).sigmoid()[kind]
    is_text = texts != judge.pad_id
    logits = judge.logits(judge(texts)[is_text])        # (tokens, V): features at t predict token t
    logp = torch.zeros(texts.shape, device=texts.device)
    logp[is_text] = -F.cross_entropy(logits, texts[is_text], reduction='none')
    return (logp.sum(1) / is_text.sum(1))[kind]


def label_logits(judge, texts):
    """Return the logits (S,) of label 1 of texts (S, T): a classifier's first output, its mean over
    the tokens of a text."""
    is_text = texts != judge.pad_id
    return (judge.logits(judge(texts))[..., 0] * is_text).sum(1) / is_text.sum(1)
