"""Language models behind one seam: local ones and endpoints. Nothing heavy is imported before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wmrl_rewards.language_models.base import Generation, LanguageModel, Message, Sampling

if TYPE_CHECKING:
    from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

__all__ = ["Generation", "HuggingFaceModel", "LanguageModel", "Message", "Sampling"]


def __getattr__(name: str) -> Any:
    """Import torch and transformers only with the class that needs them."""
    if name == "HuggingFaceModel":
        from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

        return HuggingFaceModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
