"""LoRA: small trainable matrices beside frozen weights, and those weights alone, without a second copy.

Each linear layer but the output layer computes ``W x + (alpha / rank) B A x`` with ``W`` frozen (Hu et al.,
"LoRA: Low-Rank Adaptation of Large Language Models", 2021). ``B`` starts at zero, so training starts exactly
at the base model; with the adapter switched off the model *is* the base again, to which the KL term holds on.
peft makes the layers; an adapter's directory is in its layout, so that other programs read it too.

The matrices are float32 where the base has 16 bits: they are small, and small steps would vanish in 16 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel
from wmrl_rewards.language_models.loading import require_lora

__all__ = [
    "BaseModel",
    "LoRAConfig",
    "adapter_off",
    "adapter_parameters",
    "add_adapter",
    "load_adapter",
    "merged_weights",
    "save_adapter",
    "untied",
]

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ADAPTER_WEIGHT = re.compile(r"\.lora_[A-Za-z_]+\.")


@dataclass(frozen=True)
class LoRAConfig:
    """An adapter's size.

    Attributes:
        rank: Inner dimension of the two matrices.
        alpha: Their product counts ``alpha / rank``.
        seed: Decides the first values of ``A``.

    Raises:
        ConfigError: A number is out of its range.
    """

    rank: int
    alpha: float = 16.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"The rank of an adapter must be at least 1, not {self.rank}.")
        if not self.alpha > 0:
            raise ConfigError(f"The alpha of an adapter must be above 0, not {self.alpha}.")


def add_adapter(model: PreTrainedModel, config: LoRAConfig, base: str) -> None:
    """Freeze a model and put an adapter beside each of its linear layers but the output layer, in place.

    Args:
        model: The base.
        config: The adapter's size.
        base: What the adapter's directory will name as its base.

    Raises:
        WMRLError: peft is missing.
    """
    require_lora()
    from peft import LoraConfig, inject_adapter_in_model

    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # a number; peft annotates int
        lora_dropout=0.0,  # what is trained is what is sampled
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        if _ADAPTER_WEIGHT.search(name):
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        parameter.requires_grad_(bool(_ADAPTER_WEIGHT.search(name)))


def save_adapter(model: PreTrainedModel, directory: Path) -> None:
    """Write the adapter, and the name of its base, in peft's layout."""
    from peft import get_peft_model_state_dict

    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        f"{_PREFIX}{name}": tensor.detach().cpu().contiguous()
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    settings: Any = model.peft_config["default"]
    settings.target_modules = sorted(settings.target_modules)  # a set has another order in each process
    settings.save_pretrained(directory)


def load_adapter(model: PreTrainedModel, directory: Path) -> None:
    """Read an adapter's weights into a model that has one of the same size.

    Raises:
        WMRLError: The directory holds none, or one of another size or for another model.
    """
    if not (directory / WEIGHTS).is_file():
        raise WMRLError(f"{directory} holds no adapter: there is no {WEIGHTS}.")
    stored = load_file(directory / WEIGHTS)
    own = {
        _PREFIX + name.replace(".default.", "."): parameter
        for name, parameter in model.named_parameters()
        if _ADAPTER_WEIGHT.search(name)
    }
    if {name: tensor.shape for name, tensor in stored.items()} != {n: p.shape for n, p in own.items()}:
        raise WMRLError(
            f"The adapter in {directory} is of another rank than the one asked for, or for another model."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])


@contextmanager
def adapter_off(model: PreTrainedModel) -> Iterator[None]:
    """Let a model be its base for a while."""
    layers = _layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights of a plain model that computes the same, one by one, under the base's own names.

    Each is rounded once, to the number format of the base: 16 bits do not hold all of a small adapter.
    """
    products = {f"{name}.base_layer.weight": layer for name, layer in _layers(model).items()}
    for name, tensor in model.state_dict().items():
        if _ADAPTER_WEIGHT.search(name):
            continue
        if name in products:
            tensor = (
                tensor.to(torch.promote_types(tensor.dtype, torch.float32))
                + products[name].get_delta_weight("default")
            ).to(tensor.dtype)
        yield name.replace(".base_layer.", "."), tensor.detach()


def untied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that have two names (input and output embeddings), under the first of them only."""
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in weights.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: weights[name] for name in first.values()}


class BaseModel(HuggingFaceModel):
    """The base of a model with an adapter, as a language model of its own that shares the weights.

    Args:
        language_model: The model with the adapter.
    """

    def __init__(self, language_model: HuggingFaceModel) -> None:
        self.__dict__.update(language_model.__dict__)
        self.__dict__.pop("fingerprint", None)

    @contextmanager
    def in_use(self) -> Iterator[PreTrainedModel]:
        """The model with its adapter off."""
        with adapter_off(self.model):
            yield self.model

    def named_weights(self) -> dict[str, Tensor]:
        """The base's weights, under the base's own names."""
        return {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in self.model.state_dict().items()
            if not _ADAPTER_WEIGHT.search(name)
        }


def adapter_parameters(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """The adapter's parameters, always in the same order."""
    return [p for name, p in model.named_parameters() if _ADAPTER_WEIGHT.search(name)]


def _layers(model: PreTrainedModel) -> dict[str, Any]:
    """Layers that have an adapter, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
