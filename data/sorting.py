"""Letters and their order: pairs such as `kcqcaz...=` and `acckqz...`, of 20 to 30 letters. A task
for studies: an answer is long, and one wrong letter makes it wrong."""
import random
import string


def texts():
    """Return 40,000 training pairs and 512 held-out pairs."""
    rng = random.Random(2402)
    pairs = []
    for _ in range(40_512):
        letters = rng.choices(string.ascii_lowercase, k=rng.randint(20, 30))
        pairs.append((''.join(letters) + '=', ''.join(sorted(letters))))
    return pairs[512:], pairs[:512]


def verify(prompt, completion):
    """Return 1.0 if the completion is the prompt's letters in order, else 0.0."""
    return float(completion == ''.join(sorted(prompt.rstrip('='))))
