"""The judge: a frozen network that scores texts. A causal judge was trained on good texts; a score
is the mean log-probability of the tokens and of eos, in nats. A classifier was trained on texts
with labels; a score is the probability of label 1."""
import torch

from model import unique_rows


@torch.no_grad()
def judge_scores(judge, texts):
    """Return the scores (N,) of texts (N, T)."""
    # Score each different text once. This saves time, and equal texts have equal scores.
    rows, inverse = unique_rows(texts)
    texts = texts[rows]                                                         # (S, T)
    if judge.kind == 'classifier':
        return label_logits(judge, texts).sigmoid()[inverse]
    # The mean and not the sum, or a long text would be worse than a short one. The price: long
    # texts of easy tokens please the judge.
    is_token = texts != judge.pad_id
    logits = judge.logits(judge.features(texts)[is_token])                      # (tokens, V)
    logp = logits.new_zeros(texts.shape)
    logp[is_token] = logits.log_softmax(-1).gather(1, texts[is_token][:, None])[:, 0]
    return (logp.sum(1) / is_token.sum(1))[inverse]


def label_logits(classifier, texts):
    """Return the logits (N,) of label 1 for texts (N, T): the mean over tokens of the first of the
    V logits. To use one of V is a waste, and spares a second kind of head."""
    is_token = texts != classifier.pad_id
    logits = classifier.logits(classifier.features(texts))[..., 0]              # (N, T)
    return (logits * is_token).sum(1) / is_token.sum(1)
