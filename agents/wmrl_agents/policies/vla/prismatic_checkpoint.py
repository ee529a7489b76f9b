"""MiniVLA's network, and how it is read from a Prismatic checkpoint.

A run's folder holds ``config.json``, ``dataset_statistics.json`` and ``checkpoints/step-*.pt``, a pickle of
tensors of which only tensors are read. Its vision backbones are timm's (``vit_large_patch14_reg4_dinov2``
and ``vit_so400m_patch14_siglip_224``); here they are transformers' DINOv2 with registers and SigLIP, and the
weights are renamed:

- timm computes query, key and value by one matrix, transformers by three;
- timm's DINOv2 has no position for the class token (it is inside the token), transformers' has one: zeros;
- timm's SigLIP has the exact GELU, transformers' by default the one by tanh.

Of both backbones the second-to-last layer is used, without a norm after it, so that the last layer is not
built at all. All sizes are read off the weights, but for those of a head: 64, 72 and 64, as in the published
network.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from wmrl_envs.errors import WMRLError, in_one_line

__all__ = [
    "PrismaticNetwork",
    "check_settings",
    "dino_weights",
    "load_network",
    "newest_checkpoint",
    "read_checkpoint",
    "siglip_weights",
]

_DINO_HEAD, _SIGLIP_HEAD, _QWEN_HEAD = 64, 72, 64
_DINO_RANGE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_SIGLIP_RANGE = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

State = Mapping[str, Tensor]


class PrismaticNetwork(nn.Module):
    """Two vision backbones side by side, a projector, and a language model behind them.

    Attributes:
        image_size: Pixels of a picture's side.
    """

    dino: Any
    siglip: Any

    def __init__(self, vision: State, projector: State, llm: State) -> None:
        super().__init__()
        dino, siglip = _below(vision, "dino_featurizer."), _below(vision, "siglip_featurizer.")
        self.image_size = int(dino["pos_embed"].shape[1] ** 0.5) * dino["patch_embed.proj.weight"].shape[-1]
        self.dino = _dino(dino, self.image_size)
        self.siglip = _siglip(siglip, self.image_size)
        self.projector = _projector(_below(projector, "projector."))
        self.llm = _language_model(_below(llm, "llm."))

    def see(self, pictures: Tensor) -> Tensor:
        """Tokens of pictures.

        Args:
            pictures: Of shape (N, 3, side, side), in [0, 1].

        Returns:
            Of shape (N, patches, width of the language model).
        """
        with torch.no_grad():  # the backbones are not trained
            registers = 1 + self.dino.config.num_register_tokens
            first = self.dino(_scaled(pictures, _DINO_RANGE)).last_hidden_state[:, registers:]
            second = self.siglip(_scaled(pictures, _SIGLIP_RANGE)).last_hidden_state
        return self.projector(torch.cat([first, second], dim=2))


def _scaled(pictures: Tensor, around: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
    mean, spread = (pictures.new_tensor(values)[:, None, None] for values in around)
    return (pictures - mean) / spread


def newest_checkpoint(directory: str | os.PathLike[str]) -> Path:
    """The checkpoint of the latest step.

    Raises:
        WMRLError: There is none.
    """
    found = {}
    for path in Path(directory).glob("checkpoints/step-*.pt"):
        number = re.match(r"step-(\d+)", path.name)
        if number is not None:
            found[int(number[1])] = path
    if not found:
        raise WMRLError(f"There is no Prismatic checkpoint in {directory}: no checkpoints/step-*.pt.")
    return found[max(found)]


def read_checkpoint(path: Path) -> dict[str, dict[str, Tensor]]:
    """The weights of a checkpoint, by part; nothing in the file is executed.

    Raises:
        WMRLError: It cannot be read, or lacks a part.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["model"]
        parts = {name: dict(found[name]) for name in ("vision_backbone", "projector", "llm_backbone")}
    except Exception as error:  # Whatever is wrong with a foreign file ends as one sentence.
        why = f"{type(error).__name__}: {in_one_line(error)}"
        raise WMRLError(f"{path} is not the checkpoint of a Prismatic VLA: {why}") from error
    return parts


def check_settings(directory: str | os.PathLike[str]) -> None:
    """Refuse a run whose network is another one than MiniVLA's.

    Raises:
        WMRLError: ``config.json`` cannot be read, or says so.
    """
    path = Path(directory) / "config.json"
    try:
        vla = json.loads(path.read_text(encoding="utf-8"))["vla"]
        base, tokens = str(vla["base_vlm"]), str(vla["action_tokenizer"])
        pictures = int(vla.get("image_sequence_len", 1))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise WMRLError(f"{path} is not the configuration of a Prismatic VLA: {error!r}.") from error
    if "qwen25" not in base or "dinosiglip" not in base:
        raise WMRLError(
            f"{path} names the base {base}; only DINOv2 with SigLIP and Qwen2.5 can be read here."
        )
    if "vq" not in tokens or "extra" not in tokens:
        raise WMRLError(
            f"{path} names the action tokenizer {tokens}; only a residual code on extra tokens is read here."
        )
    if pictures != 1:
        raise WMRLError(f"{path} says that {pictures} pictures are seen at once; only one can be read here.")


def load_network(parts: Mapping[str, State]) -> PrismaticNetwork:
    """Build the network of a checkpoint's weights, in float32.

    Raises:
        WMRLError: They are not those of such a network.
    """
    try:
        network = PrismaticNetwork(parts["vision_backbone"], parts["projector"], parts["llm_backbone"])
    except (LookupError, RuntimeError, ValueError, TypeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise WMRLError(f"The weights are not those of a MiniVLA: {why}") from error
    network.dino.requires_grad_(False)
    network.siglip.requires_grad_(False)
    return network


def dino_weights(state: State, layers: int) -> dict[str, Tensor]:
    """Weights of timm's DINOv2 with registers under transformers' names, without the final norm."""
    width = state["cls_token"].shape[-1]
    first = torch.zeros(1, 1, width, dtype=state["pos_embed"].dtype)
    renamed = {
        "embeddings.cls_token": state["cls_token"],
        "embeddings.mask_token": torch.zeros(1, width),
        "embeddings.register_tokens": state["reg_token"],
        "embeddings.position_embeddings": torch.cat([first, state["pos_embed"]], dim=1),
        "embeddings.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
    }
    for i in range(layers):
        names = {"norm1": "norm1", "norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
        ours, theirs = f"encoder.layer.{i}.", f"blocks.{i}."
        renamed |= _layer(state, ours, theirs, names | {"attn.proj": "attention.o_proj"}, "attention.")
        renamed[f"{ours}layer_scale1.lambda1"] = state[f"{theirs}ls1.gamma"]
        renamed[f"{ours}layer_scale2.lambda1"] = state[f"{theirs}ls2.gamma"]
    return renamed


def siglip_weights(state: State, layers: int) -> dict[str, Tensor]:
    """Weights of timm's SigLIP under transformers' names, without the final norm and the pooling."""
    renamed = {
        "embeddings.patch_embedding.weight": state["patch_embed.proj.weight"],
        "embeddings.patch_embedding.bias": state["patch_embed.proj.bias"],
        "embeddings.position_embedding.weight": state["pos_embed"][0],
    }
    for i in range(layers):
        names = {"norm1": "layer_norm1", "norm2": "layer_norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
        ours, theirs = f"encoder.layers.{i}.", f"blocks.{i}."
        renamed |= _layer(state, ours, theirs, names | {"attn.proj": "self_attn.out_proj"}, "self_attn.")
    return renamed


def _layer(
    state: State, ours: str, theirs: str, names: Mapping[str, str], attention: str
) -> dict[str, Tensor]:
    """One block: plain renaming, and the matrix of query, key and value in three."""
    renamed = {}
    for kind in ("weight", "bias"):
        for there, here in names.items():
            renamed[f"{ours}{here}.{kind}"] = state[f"{theirs}{there}.{kind}"]
        for part, tensor in zip("qkv", state[f"{theirs}attn.qkv.{kind}"].chunk(3), strict=True):
            renamed[f"{ours}{attention}{part}_proj.{kind}"] = tensor
    return renamed


def _dino(state: State, side: int) -> Any:
    width, patch = state["patch_embed.proj.weight"].shape[0], state["patch_embed.proj.weight"].shape[-1]
    layers = _depth(state, "blocks.") - 1
    config = Dinov2WithRegistersConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // _DINO_HEAD,
        mlp_ratio=state["blocks.0.mlp.fc1.weight"].shape[0] // width,
        image_size=side,
        patch_size=patch,
        num_register_tokens=state["reg_token"].shape[1],
        layer_norm_eps=1e-6,
    )
    model: Any = Dinov2WithRegistersModel(config)
    model.layernorm = nn.Identity()
    model.load_state_dict(dino_weights(state, layers))
    return model.eval()


def _siglip(state: State, side: int) -> Any:
    width, patch = state["patch_embed.proj.weight"].shape[0], state["patch_embed.proj.weight"].shape[-1]
    layers = _depth(state, "blocks.") - 1
    config = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=state["blocks.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=layers,
        num_attention_heads=width // _SIGLIP_HEAD,
        image_size=side,
        patch_size=patch,
        hidden_act="gelu",
        layer_norm_eps=1e-6,
        vision_use_head=False,
    )
    model: Any = SiglipVisionModel(config)
    model.post_layernorm = nn.Identity()
    model.load_state_dict(siglip_weights(state, layers))
    return model.eval()


def _projector(state: State) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in (0, 2, 4):
        rows, columns = state[f"{number}.weight"].shape
        layers += [nn.Linear(columns, rows), nn.GELU()]
    projector = nn.Sequential(*layers[:-1])
    projector.load_state_dict(dict(state))
    return projector


def _language_model(state: State) -> Qwen2ForCausalLM:
    rows, width = state["model.embed_tokens.weight"].shape
    output = state.get("lm_head.weight")
    tied = output is None or torch.equal(output, state["model.embed_tokens.weight"])
    config = Qwen2Config(
        vocab_size=rows,
        hidden_size=width,
        intermediate_size=state["model.layers.0.mlp.gate_proj.weight"].shape[0],
        num_hidden_layers=_depth(state, "model.layers."),
        num_attention_heads=state["model.layers.0.self_attn.q_proj.weight"].shape[0] // _QWEN_HEAD,
        num_key_value_heads=state["model.layers.0.self_attn.k_proj.weight"].shape[0] // _QWEN_HEAD,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=tied,
    )
    model = Qwen2ForCausalLM(config)
    model.load_state_dict(
        dict(state) | {"lm_head.weight": state["model.embed_tokens.weight"]} if tied else state
    )
    return model.eval()


def _below(state: State, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _depth(state: State, prefix: str) -> int:
    return 1 + max(int(name.removeprefix(prefix).split(".")[0]) for name in state if name.startswith(prefix))
