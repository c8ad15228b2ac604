"""The judge: a frozen network that scores texts. A likelihood judge is a causal network that was
trained on good texts: its score is the mean log-probability of the tokens of a text, eos included,
in nats. A classifier was trained on texts with labels: its score is the probability of label 1."""
import torch

from plumbing.sharing import compute_once


@torch.no_grad()
def judge_scores(judge, texts):
    """Return the scores (N,) of texts (N, T), padded at the end."""
    score = label_probabilities if judge.kind == 'classifier' else likelihoods
    return compute_once(score, judge, texts)            # score(judge, texts), equal texts once


def likelihoods(judge, texts):
    """Return the mean log-probability (N,) of the tokens of texts (N, T)."""
    is_token = texts != judge.pad_id
    logits = judge.logits(judge.features(texts)[is_token])                      # (tokens, V)
    logp = logits.new_zeros(texts.shape)
    logp[is_token] = logits.log_softmax(-1).gather(1, texts[is_token][:, None])[:, 0]
    # The mean and not the sum, or a long text would be worse than a short one. The price: a judge
    # likes long texts of easy tokens.
    return logp.sum(1) / is_token.sum(1)


def label_probabilities(classifier, texts):
    """Return the probability (N,) that the label of texts (N, T) is 1."""
    return label_logits(classifier, texts).sigmoid()


def label_logits(classifier, texts):
    """Return the logits (N,) of label 1: the mean over tokens of the first of the V logits. Using
    only the first one wastes the others, but it lets a classifier share the GPT's output layer."""
    is_token = texts != classifier.pad_id
    logits = classifier.logits(classifier.features(texts))[..., 0]              # (N, T)
    return (logits * is_token).sum(1) / is_token.sum(1)
