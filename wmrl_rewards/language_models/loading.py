"""Load causal language models and tokenizers of the Hugging Face layout, with one sentence where that fails.

A directory that holds a LoRA adapter (``adapter_config.json``) counts as a model too: the base that it names,
with the adapter merged into its weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from wmrl_envs.errors import WMRLError, in_one_line

__all__ = [
    "base_of",
    "check_exists",
    "files_digest",
    "is_adapter",
    "load_model",
    "load_tokenizer",
    "plain_decode",
    "require_lora",
    "too_long",
]

ADAPTER_CONFIG = "adapter_config.json"


def load_model(
    source: str | os.PathLike[str],
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> PreTrainedModel:
    """Load a model, or an adapter merged into its base.

    Args:
        source: A directory, or the name of a model.
        device: Where to put it; None takes the accelerator if there is one.
        dtype: Type of the weights; None takes that of the checkpoint, but float32 instead of float16 on a
            processor, which computes float16 several times more slowly.

    Raises:
        WMRLError: There is no such model, its weights are incomplete, or peft is needed and missing.
    """
    if is_adapter(source):
        return _merged(Path(source), device, dtype)
    check_exists(source)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=True,  # the other format is a pickle
            output_loading_info=True,
        )
    except Exception as error:  # Whatever is wrong with a foreign folder ends as one sentence.
        raise WMRLError(f"Cannot load the language model '{source}': {in_one_line(error)}") from error
    model, report = loaded
    if report["missing_keys"]:
        some = ", ".join(sorted(report["missing_keys"])[:3])
        raise WMRLError(f"The weights of the language model '{source}' are incomplete: {some} ... missing.")
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    if dtype is None and model.dtype == torch.float16 and torch.device(device).type == "cpu":
        model = model.float()
    return model.to(device)


def load_tokenizer(source: str | os.PathLike[str]) -> Any:
    """Load the tokenizer of a model.

    Raises:
        WMRLError: It cannot be loaded.
    """
    if is_adapter(source) and not (Path(source) / "tokenizer_config.json").is_file():
        source = base_of(Path(source))
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # As above.
        raise WMRLError(f"Cannot load the tokenizer of '{source}': {in_one_line(error)}") from error


def plain_decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Text of token ids, without special tokens and without any beautifying."""
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def is_adapter(source: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a LoRA adapter instead of whole weights."""
    return (Path(source) / ADAPTER_CONFIG).is_file()


def base_of(adapter: Path) -> str:
    """The model that an adapter was trained on, as its directory says.

    Raises:
        WMRLError: It does not say.
    """
    try:
        base = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise WMRLError(f"{adapter / ADAPTER_CONFIG} does not name a base model.") from error
    if not isinstance(base, str) or not base:
        raise WMRLError(f"{adapter / ADAPTER_CONFIG} does not name a base model.")
    return base


def require_lora() -> None:
    """Make sure that peft is there.

    Raises:
        WMRLError: It is not.
    """
    if find_spec("peft") is None:
        raise WMRLError("LoRA needs the package peft: pip install 'wmrl[lora]'.")


def _merged(adapter: Path, device: str | torch.device | None, dtype: torch.dtype | None) -> PreTrainedModel:
    """The base of an adapter with the adapter's product added to its weights."""
    require_lora()
    from peft import PeftModel

    model = load_model(base_of(adapter), device, dtype)
    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except Exception as error:  # As above.
        raise WMRLError(f"Cannot load the adapter '{adapter}': {in_one_line(error)}") from error


def check_exists(source: str | os.PathLike[str]) -> None:
    """Refuse a path that is not there: it would be taken for the name of a model on the hub.

    Raises:
        WMRLError: There is no such directory, or it holds no model.
    """
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise WMRLError(f"{path} is not a Hugging Face model directory: it has no config.json.")
    elif (
        isinstance(source, Path) or len(path.parts) > 2 or path.is_absolute() or path.parts[0] in ("..", "~")
    ):
        raise WMRLError(f"There is no model directory {path}.")


def files_digest(folder: Path) -> str:
    """Names the content of a model directory: every file in it, by name and bytes."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()


def too_long(prompt_tokens: int, max_new_tokens: int, max_context: int | None) -> str | None:
    """One sentence if a prompt of so many tokens leaves no room for a reply, else None."""
    if max_context is None or prompt_tokens + max_new_tokens <= max_context:
        return None
    return (
        f"The prompt has {prompt_tokens} tokens, and {max_new_tokens} new ones are asked for: "
        f"the model's context holds {max_context}."
    )
