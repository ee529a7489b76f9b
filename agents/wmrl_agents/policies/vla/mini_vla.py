"""`MiniVLA`: the published vision-language-action model, from its Prismatic checkpoint.

A picture becomes 256 tokens behind the first token of the prompt, and Qwen2.5 says seven more, the codes of
a chunk of eight actions: code c is token ``len(tokenizer) - 1 - c``, among the 256 tokens ``<|extra_i|>``
that were added to the vocabulary. Only the 128 tokens that are codes can be said; the published program lets
any token be said and takes the nearest code for it without a word.

What decides whether it works: pictures are upright, that is flipped *vertically only* from what LIBERO's
renderer gives (``orientation="vertical_flip"`` of `wmrl_envs.libero.LiberoEnv`, not the rotation by 180
degrees of the OpenVLA family), and reduced to 224 pixels by Lanczos' filter; the codes mean actions in the
statistics of LIBERO-90, also in LIBERO-Long.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache

from wmrl_agents.policies.base import Sample
from wmrl_agents.policies.vla.action_tokens import ActionStatistics, PublishedCodec, gripper_to_libero
from wmrl_agents.policies.vla.chunk_policy import ChunkPolicy
from wmrl_agents.policies.vla.prismatic_checkpoint import (
    PrismaticNetwork,
    check_settings,
    load_network,
    newest_checkpoint,
    read_checkpoint,
)
from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.errors import ConfigError, MissingExtraError, WMRLError, in_one_line

__all__ = ["EXTRA_TOKENS", "MiniVLA", "prompt_of"]

EXTRA_TOKENS = 256
_PADDING = 64  # rows of embeddings come in multiples of it
_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


@dataclass
class _Context:
    """A batch of prompts with their pictures, and what was computed of them already."""

    embeddings: Tensor
    attention: Tensor
    cache: Any = None


class MiniVLA(ChunkPolicy):
    """MiniVLA on LIBERO; see the module for what it has to be shown.

    The language model and the projector are trained, the vision backbones stay as they are.

    Args:
        directory: Folder of the run; see `prismatic_checkpoint`.
        codec: Folder of the codec, or the codec; None takes the folder ``codec`` in the run's.
        tokenizer: Folder, or name of a model, with Qwen2.5's tokenizer; None takes the folder ``tokenizer``
            in the run's if there is one, else Qwen/Qwen2.5-0.5B.
        dataset: Whose statistics the codes are in; may be left out if the run has those of one data set.
        temperature: Temperature of the policy, above 0.
        batch_size: Decisions that are computed at once.
        device: Where to run; None takes the accelerator if there is one.
        dtype: Type of the weights. Small steps of an optimiser vanish in 16-bit weights, hence float32.

    Raises:
        WMRLError: The folder is not a MiniVLA, or codec, tokenizer or statistics do not belong to it.
    """

    network: PrismaticNetwork
    codec: PublishedCodec
    orientation = "vertical_flip"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        codec: str | os.PathLike[str] | PublishedCodec | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        temperature: float = 1.0,
        batch_size: int = 16,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        folder = Path(directory)
        check_settings(folder)
        if not isinstance(codec, PublishedCodec):
            codec = PublishedCodec.load(folder / "codec" if codec is None else codec)
        super().__init__(codec, temperature=temperature, batch_size=batch_size)
        self.directory = folder
        self.dataset = dataset
        self.statistics = ActionStatistics.load(folder / "dataset_statistics.json", dataset)
        self._checkpoint = newest_checkpoint(folder)
        network = load_network(read_checkpoint(self._checkpoint))
        own = folder / "tokenizer"
        source = tokenizer or (own if own.is_dir() else "Qwen/Qwen2.5-0.5B")
        self.tokenizer = _load_tokenizer(source, network.llm.config.vocab_size)
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.network = network.to(chosen, dtype)
        self._code_ids = len(self.tokenizer) - 1 - torch.arange(codec.num_codes, device=chosen)

    def check_orientation(self, orientation: str) -> None:
        """Refuse an environment whose pictures stand or lie otherwise than those of the training data.

        Args:
            orientation: That of `wmrl_envs.libero.LiberoEnv`.

        Raises:
            ConfigError: It is another one.
        """
        if orientation != self.orientation:
            raise ConfigError(
                f"MiniVLA was trained on pictures with orientation '{self.orientation}', and fails without a "
                f"word on '{orientation}': make the environment with orientation='{self.orientation}'."
            )

    def check(self, task: str, observation: Observation) -> None:
        """Refuse what cannot be decided on. See `ChunkPolicy`."""
        image = observation.image
        if not task.strip():
            raise ConfigError("MiniVLA needs the task in words.")
        if image is None or image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ConfigError("MiniVLA looks at pictures: uint8 of shape (H, W, 3), upright.")

    def chunk(self, sample: Sample) -> NDArray[np.float32]:
        """The eight actions of the last decision, in LIBERO's units and with its gripper."""
        actions = self.statistics.unnormalise(super().chunk(sample))
        return gripper_to_libero(actions).astype(np.float32)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write a run's folder as the published one, with tokenizer and codec in it."""
        folder = Path(directory)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        state = {name: value.detach().cpu() for name, value in self.network.state_dict().items()}
        parts = {"projector": "projector.", "llm_backbone": "llm."}
        model = {
            part: {name: value for name, value in state.items() if name.startswith(prefix)}
            for part, prefix in parts.items()
        }
        model["vision_backbone"] = read_checkpoint(self._checkpoint)["vision_backbone"]
        step = 1 + int(self._checkpoint.name.removeprefix("step-").split("-")[0].split(".")[0])
        torch.save({"model": model}, folder / "checkpoints" / f"step-{step:06d}-trained.pt")
        for name in ("config.json", "dataset_statistics.json"):
            shutil.copy(self.directory / name, folder / name)
        self.tokenizer.save_pretrained(folder / "tokenizer")
        self.codec.save(folder / "codec")
        return folder

    def _context(self, tasks: Sequence[str], observations: Sequence[Observation]) -> _Context:
        dtype = self.network.llm.dtype
        pictures = torch.stack([_picture(one.image, self.network.image_size) for one in observations])
        seen = self.network.see(pictures.to(self.device, dtype))
        prompts = [self.tokenizer(prompt_of(task), add_special_tokens=False)["input_ids"] for task in tasks]
        longest = max(map(len, prompts))
        attention = torch.tensor(
            [[0] * (longest - len(p)) + [1] * (len(p) + seen.shape[1]) for p in prompts], device=self.device
        )
        embed = self.network.llm.get_input_embeddings()
        rows = []
        for prompt, picture in zip(prompts, seen, strict=True):
            said = embed(torch.tensor(prompt, device=self.device))
            filler = said.new_zeros((longest - len(prompt), said.shape[1]))
            rows.append(torch.cat([filler, said[:1], picture, said[1:]]))
        return _Context(torch.stack(rows), attention)

    def _next_logits(self, context: _Context, tokens: Tensor) -> Tensor:
        if tokens.shape[1] == 0:
            context.cache = DynamicCache(config=self.network.llm.config)
            new = context.embeddings
        else:
            new = self._said(tokens[:, -1:])
        return self._codes(self._read(context, new, tokens.shape[1], context.cache)[:, -1])

    def _all_logits(self, context: _Context, tokens: Tensor) -> Tensor:
        everything = torch.cat([context.embeddings, self._said(tokens[:, :-1])], dim=1)
        hidden = self._read(context, everything, tokens.shape[1] - 1, None)
        return self._codes(hidden[:, -tokens.shape[1] :])

    def _said(self, codes: Tensor) -> Tensor:
        return self.network.llm.get_input_embeddings()(self._code_ids[codes])

    def _read(self, context: _Context, new: Tensor, said: int, cache: Any) -> Tensor:
        """Last hidden states of ``new``, the end of the prompts with ``said`` codes behind them."""
        ones = context.attention.new_ones((len(new), said))
        attention = torch.cat([context.attention, ones], dim=1)
        # Fillers on the left move nothing: each prompt counts from its own first token.
        positions = (attention.cumsum(dim=1) - 1).clamp(min=0)[:, -new.shape[1] :]
        read = self.network.llm.model(
            inputs_embeds=new,
            attention_mask=attention,
            position_ids=positions,
            cache=cache,
            use_cache=cache is not None,
        )
        return read.last_hidden_state

    def _codes(self, hidden: Tensor) -> Tensor:
        """Logits of the tokens that are codes; nothing else can be said."""
        return hidden @ self.network.llm.get_output_embeddings().weight[self._code_ids].T


def prompt_of(task: str) -> str:
    """The prompt of the training data."""
    question = f"What action should the robot take to {task.lower()}?"
    return (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def _picture(image: Any, side: int) -> Tensor:
    """A picture as (3, side, side) in [0, 1], by Lanczos' filter."""
    if image.shape[:2] != (side, side):
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtraError("pillow", "vla") from error
        image = Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def _load_tokenizer(source: str | os.PathLike[str], rows: int) -> Any:
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # Whatever is wrong with a foreign folder ends as one sentence.
        raise WMRLError(
            f"Cannot load a tokenizer from '{source}': {in_one_line(error)} "
            "Name a folder that holds that of Qwen2.5 (tokenizer=)."
        ) from error
    tokenizer.add_tokens([f"<|extra_{i}|>" for i in range(EXTRA_TOKENS)])
    last = tokenizer.convert_tokens_to_ids(f"<|extra_{EXTRA_TOKENS - 1}|>")
    if last != len(tokenizer) - 1 or not 0 <= rows - len(tokenizer) < _PADDING:
        raise WMRLError(
            f"The tokenizer of '{source}' has {len(tokenizer)} tokens with {EXTRA_TOKENS} extra ones, the "
            f"weights have {rows} rows of embeddings: it is not the tokenizer that they were trained with."
        )
    return tokenizer
