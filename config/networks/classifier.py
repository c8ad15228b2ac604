# The loss of a classifier, which learns the column `label` of the records, 0 or 1. The recipe of a
# classifier includes this file.

from judge import label_logits

kind = 'classifier'


def labelled(prompts):
    """Return the texts (n, T) that a classifier learns from, and their labels (n,)."""
    records = prompts.task.records
    wrong = [record for record in records if record.get('label') not in (0, 1)]
    expect(not wrong, f"{dataset}: expected a label, 0 or 1, in each record, not "
           f"{wrong[:1]!r:.200}")
    expect(len({record['label'] for record in records}) == 2, f"{dataset}: all labels are "
           f"{records[0]['label']}: expected both, 0 and 1")
    labels = torch.tensor([float(record['label']) for record in records])
    return prompts.whole, labels.to(prompts.record.device)[prompts.record]


def loss_of(network, prompts):
    texts, labels = labelled(prompts)
    return F.binary_cross_entropy_with_logits(label_logits(network, texts), labels)
