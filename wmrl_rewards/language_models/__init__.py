"""Language models behind one seam: local ones and endpoints. Nothing heavy is imported before it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wmrl_rewards.language_models.base import (
    Generation,
    LanguageModel,
    Message,
    Sampling,
    takes_instructions,
    takes_schema,
)

if TYPE_CHECKING:
    from wmrl_rewards.language_models.hugging_face import HuggingFaceModel
    from wmrl_rewards.language_models.openai_client import OpenAIModel
    from wmrl_rewards.language_models.vllm_engine import VLLMModel

__all__ = [
    "Generation",
    "HuggingFaceModel",
    "LanguageModel",
    "Message",
    "OpenAIModel",
    "Sampling",
    "VLLMModel",
    "takes_instructions",
    "takes_schema",
]

_LAZY = {
    "HuggingFaceModel": "wmrl_rewards.language_models.hugging_face",
    "OpenAIModel": "wmrl_rewards.language_models.openai_client",
    "VLLMModel": "wmrl_rewards.language_models.vllm_engine",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
