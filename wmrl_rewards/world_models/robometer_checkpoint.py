"""Robometer's published weights: what is in such a folder, what can be wrong with it, and how it is loaded.

Two layouts hold the same network. LeRobot's (``lerobot/Robometer-4B``): ``config.json`` with the settings and
the backbone's own configuration as ``vlm_config``, ``model.safetensors`` or shards with an index. The
original one (``robometer/Robometer-4B``) names the backbone's weights ``model.visual...`` and
``model.language_model...``, without the second ``model.`` of LeRobot's; both names are read.

The backbone is Qwen3-VL. Five tokens were appended to its tokenizer, in the order of `SPECIAL_TOKENS`, and
the table of embeddings grew by as many rows: with another order every row would belong to another token, and
no error would say so. Hence the checks here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AddedToken, AutoTokenizer, Qwen3VLConfig, Qwen3VLModel

from wmrl_envs.errors import WMRLError, in_one_line

__all__ = [
    "SPECIAL_TOKENS",
    "RobometerNetwork",
    "RobometerSettings",
    "load_robometer",
    "load_tokenizer",
    "read_settings",
    "weight_faults",
]

SPECIAL_TOKENS = (
    "<|split_token|>",
    "<|reward_token|>",
    "<|pref_token|>",
    "<|sim_token|>",
    "<|prog_token|>",
)
IMAGE_TOKEN = "<|image_pad|>"
_FRAME_TOKENS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
_SHOWN = 3  # names in a sentence


@dataclass(frozen=True)
class RobometerSettings:
    """What ``config.json`` says.

    Attributes:
        backbone: Configuration of the Qwen3-VL backbone.
        bins: Number of bins of the progress head.
        dtype: Type that the weights are meant to run in.
        base_model_id: Name of the model whose tokenizer is used.
    """

    backbone: Any  # a Qwen3VLConfig, whose parts the library declares as anything
    bins: int
    dtype: torch.dtype
    base_model_id: str


class RobometerNetwork(nn.Module):
    """Qwen3-VL's body with Robometer's heads, under the names of the original checkpoint.

    Args:
        backbone: The body.
        bins: Number of bins of the progress head.
    """

    def __init__(self, backbone: Qwen3VLModel, bins: int) -> None:
        super().__init__()
        config: Any = backbone.config
        hidden = config.text_config.hidden_size
        self.model = backbone
        self.progress_head = _head(hidden, bins)
        self.success_head = _head(hidden, 1)
        # Not asked here; part of the checkpoint all the same.
        self.preference_head = _head(hidden, 1)
        self.frame_pool_attn = nn.Linear(hidden, 1, bias=False)

    def forward(self, inputs: Mapping[str, Tensor], marked: Tensor) -> tuple[Tensor, Tensor]:
        """Read the heads at marked tokens.

        Args:
            inputs: Arguments of the backbone.
            marked: Boolean, (batch, length), with the same number of marks in each row.

        Returns:
            Progress logits (batch, marks, bins) and success logits (batch, marks), in float32.
        """
        hidden = self.model(**inputs, use_cache=False).last_hidden_state
        at_marks = hidden[marked].view(hidden.shape[0], -1, hidden.shape[-1])
        return self.progress_head(at_marks).float(), self.success_head(at_marks).squeeze(-1).float()


def _head(hidden: int, outputs: int) -> nn.Sequential:
    half = hidden // 2
    return nn.Sequential(
        nn.Linear(hidden, half), nn.LayerNorm(half), nn.GELU(), nn.Dropout(0.1), nn.Linear(half, outputs)
    )


def read_settings(directory: str | os.PathLike[str]) -> RobometerSettings:
    """Read ``config.json``.

    Raises:
        WMRLError: It is not there, or does not describe a Robometer that reads progress tokens.
    """
    path = Path(directory) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WMRLError(f"There is no Robometer in {directory}: {path} cannot be read ({error}).") from error
    except ValueError as error:
        raise WMRLError(f"{path} is not valid JSON: fetch it again ({error}).") from error
    vlm = found.get("vlm_config") if isinstance(found, dict) else None
    if not isinstance(vlm, dict) or vlm.get("model_type") != "qwen3_vl":
        raise WMRLError(
            f"{path} has no vlm_config of model_type qwen3_vl: it is not a Robometer in LeRobot's format."
        )
    wanted = {"use_multi_image": True, "use_per_frame_progress_token": True, "progress_loss_type": "discrete"}
    for name, value in wanted.items():
        if found.get(name, value) != value:
            raise WMRLError(f"{path} says {name}: {found[name]!r}; only {value!r} can be read here.")
    dtype = getattr(torch, str(found.get("torch_dtype", "bfloat16")), None)
    bins = found.get("progress_discrete_bins", 10)
    if not isinstance(dtype, torch.dtype) or not isinstance(bins, int) or bins < 2:
        raise WMRLError(f"{path} has a torch_dtype or progress_discrete_bins that cannot be: fetch it again.")
    try:
        backbone = Qwen3VLConfig(**{key: value for key, value in vlm.items() if key != "model_type"})
    except Exception as error:  # Whatever is wrong in a foreign file ends as one sentence.
        raise WMRLError(f"The vlm_config in {path} cannot be used: {in_one_line(error)}") from error
    base = str(found.get("base_model_id", "Qwen/Qwen3-VL-4B-Instruct"))
    return RobometerSettings(backbone, bins, dtype, base)


def load_tokenizer(source: str | os.PathLike[str], settings: RobometerSettings) -> Any:
    """The backbone's tokenizer with Robometer's tokens.

    Args:
        source: A folder with the tokenizer, or the name of a model.
        settings: Those of the checkpoint that it is for.

    Raises:
        WMRLError: It cannot be loaded, or its tokens are not where the weights have them.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # As above.
        raise WMRLError(
            f"Cannot load a tokenizer from '{source}': {in_one_line(error)} "
            "Name a folder that holds that of Qwen3-VL (tokenizer=, or --tokenizer of wmrl doctor)."
        ) from error
    vocabulary = tokenizer.get_vocab()
    lacking = [token for token in (*_FRAME_TOKENS, IMAGE_TOKEN) if token not in vocabulary]
    if lacking:
        raise WMRLError(f"The tokenizer of '{source}' lacks {', '.join(lacking)}: it is not Qwen3-VL's.")
    for token in SPECIAL_TOKENS:
        if token not in vocabulary:
            tokenizer.add_tokens([AddedToken(token, special=True)], special_tokens=True)
    ids = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
    rows = settings.backbone.text_config.vocab_size
    if ids != list(range(ids[0], ids[0] + len(ids))):
        raise WMRLError(
            f"The tokenizer of '{source}' has Robometer's tokens at {ids}, not one after the other in the "
            f"order {', '.join(SPECIAL_TOKENS)}: their embeddings would be those of other tokens."
        )
    if ids[-1] >= rows:
        raise WMRLError(
            f"The tokenizer of '{source}' has {SPECIAL_TOKENS[-1]} at {ids[-1]}, but the weights have "
            f"{rows} rows of embeddings: it is not the tokenizer that these weights were trained with."
        )
    image = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    if image != settings.backbone.image_token_id:
        raise WMRLError(
            f"The tokenizer of '{source}' has {IMAGE_TOKEN} at {image}, the configuration has it at "
            f"{settings.backbone.image_token_id}: they do not belong together."
        )
    return tokenizer


def weight_faults(directory: str | os.PathLike[str], settings: RobometerSettings) -> Iterator[str]:
    """One sentence for each thing that is wrong with the names and shapes of the weights."""
    try:
        found = {
            ours: shape
            for path in _weight_files(directory)
            for name, shape in _shapes(path).items()
            if (ours := _our_name(name)) is not None
        }
    except WMRLError as error:
        yield str(error)
        return
    with torch.device("meta"):
        network = RobometerNetwork(Qwen3VLModel(settings.backbone), settings.bins)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for what, names in (
        ("lack", sorted(expected.keys() - found.keys())),
        ("hold unknown", sorted(found.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"The weights in {directory} {what} {', '.join(names[:_SHOWN])}{more}."
    for name in sorted(expected.keys() & found.keys()):
        if expected[name] != found[name]:
            yield (
                f"In {directory} the weight {name} is of shape {found[name]}, "
                f"but the configuration says {expected[name]}."
            )


def load_robometer(
    directory: str | os.PathLike[str],
    settings: RobometerSettings,
    *,
    device: str | torch.device,
    dtype: torch.dtype,
) -> RobometerNetwork:
    """Load the network for inference.

    Raises:
        WMRLError: Names or shapes are not those of the configuration.
    """
    faults = list(weight_faults(directory, settings))
    if faults:
        raise WMRLError(" ".join(faults[:_SHOWN]))
    state: dict[str, Tensor] = {}
    for path in _weight_files(directory):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                ours = _our_name(name)
                if ours is not None:
                    state[ours] = file.get_tensor(name).to(dtype)
    body = {name.removeprefix("model."): state.pop(name) for name in list(state) if name.startswith("model.")}
    # Without a name from_pretrained fills a network of this configuration from the given weights.
    backbone = Qwen3VLModel.from_pretrained(None, config=settings.backbone, state_dict=body, dtype=dtype)
    network = RobometerNetwork(backbone, settings.bins).to(dtype)
    network.load_state_dict(state | {f"model.{name}": value for name, value in body.items()})
    return network.to(device).eval().requires_grad_(False)


def _our_name(name: str) -> str | None:
    """A weight's name here; None for the output layer, which nothing asks."""
    if name == "model.lm_head.weight":
        return None
    return "model." + name.removeprefix("model.model.") if name.startswith("model.model.") else name


def _weight_files(directory: str | os.PathLike[str]) -> list[Path]:
    single = Path(directory) / "model.safetensors"
    if single.is_file():
        return [single]
    index = Path(directory) / "model.safetensors.index.json"
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise WMRLError(
            f"There are no weights in {directory}: neither model.safetensors nor a readable "
            "model.safetensors.index.json."
        ) from error
    paths = [Path(directory) / Path(str(name)).name for name in names]
    lacking = [path.name for path in paths if not path.is_file()]
    if lacking:
        raise WMRLError(f"The weights in {directory} are incomplete: {', '.join(lacking[:_SHOWN])} missing.")
    return paths


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise WMRLError(f"{path} cannot be read: fetch it again ({error}).") from error
