"""`SmallVLA`: a small policy of ours with MiniVLA's tokens, which learns on a processor.

It sees a vector of numbers, a picture, or both, and knows a list of tasks. The context of a decision is

    h = f(state) + g(picture) + E[task],

with f a perceptron on standardised numbers and g three convolutions on the picture pooled to 64 x 64 pixels.
Token k is said from h and the tokens before it,

    logits_k = W_k (z + MLP(z)),  z = norm(h + sum_{j<k} T_j[c_j] + L_k),

so that all tokens of a chunk are trained in one pass, and drawn in seven cheap ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wmrl_agents.policies.vla.action_tokens import ActionCodec, ResidualCodec
from wmrl_agents.policies.vla.chunk_policy import ChunkPolicy
from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.errors import ConfigError, WMRLError, in_one_line
from wmrl_envs.libero.views import PictureView

__all__ = ["SmallVLA"]

_SIDE = 64
_FILES = ("vla.json", "vla.safetensors", "codebooks.safetensors")


class SmallVLA(ChunkPolicy):
    """A small policy of chunks; see the module.

    Args:
        tasks: The tasks that it knows, in words.
        codec: What its tokens mean.
        state_size: Numbers of a state; None if it reads none.
        pictures: Whether it looks at pictures.
        view: How these are made, if it is known: it was trained on such, and is shown no others.
        hidden: Width of the network.
        dropout: Share of the context's numbers that supervised training leaves out; acting and GRPO see all.
        temperature: Temperature of the policy, above 0.
        batch_size: Decisions that are computed at once.
        seed: Decides the first weights.

    Raises:
        ConfigError: A setting is out of its range.

    Example:
        >>> moves = np.random.default_rng(0).uniform(-1, 1, (200, 8, 7)).astype(np.float32)
        >>> policy = SmallVLA(["go"], ResidualCodec.fit(moves, codes=16), state_size=3)
        >>> record = policy.begin("go", Observation(state=np.zeros(3, np.float32)))
        >>> [sample] = policy.sample([record], seed=0)
        >>> len(sample.decisions[0]), policy.chunk(sample).shape
        (7, (8, 7))
    """

    network: _Network

    def __init__(
        self,
        tasks: Sequence[str],
        codec: ActionCodec,
        *,
        state_size: int | None = None,
        pictures: bool = False,
        view: PictureView | Mapping[str, Any] | None = None,
        hidden: int = 256,
        dropout: float = 0.0,
        temperature: float = 1.0,
        batch_size: int = 1024,
        seed: int = 0,
    ) -> None:
        super().__init__(codec, temperature=temperature, batch_size=batch_size)
        if not tasks or len(set(tasks)) != len(tasks):
            raise ConfigError("A policy needs at least one task, and none of them twice.")
        if state_size is None and not pictures:
            raise ConfigError("A policy must see something: give state_size, or pictures=True.")
        if hidden < 1 or (state_size is not None and state_size < 1):
            raise ConfigError("hidden and state_size must be at least 1.")
        if view is not None and not pictures:
            raise ConfigError("A policy that looks at no pictures has no view of them.")
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, not {dropout}.")
        self.tasks = tuple(tasks)
        self.state_size = state_size
        self.pictures = pictures
        self.view = PictureView(**view) if isinstance(view, Mapping) else view
        self.hidden = hidden
        self.dropout = dropout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = (codec.num_tokens, codec.num_codes)
            self.network = _Network(len(self.tasks), state_size, pictures, hidden, shape, dropout)

    def check(self, task: str, observation: Observation) -> None:
        """Refuse what cannot be decided on. See `ChunkPolicy`."""
        if task not in self.tasks:
            raise ConfigError(
                f"The policy does not know the task {task[:80]!r}; it was made for {self.tasks}."
            )
        state, image = observation.state, observation.image
        if self.state_size is not None and (state is None or np.shape(state) != (self.state_size,)):
            shape = None if state is None else np.shape(state)
            raise ConfigError(f"The policy reads states of {self.state_size} numbers, not of shape {shape}.")
        if self.pictures and (image is None or image.ndim != 3 or image.dtype != np.uint8):
            raise ConfigError("The policy looks at pictures: uint8 of shape (H, W, 3).")
        if self.view is not None and image is not None and image.shape[:2] != (self.view.image_size,) * 2:
            raise ConfigError(
                f"The policy was trained on pictures of {self.view.image_size} x {self.view.image_size} "
                f"pixels, and is shown one of {image.shape[0]} x {image.shape[1]}."
            )

    def standardise(self, states: ArrayLike) -> None:
        """Learn mean and spread of the states, of shape (N, D), that training will show."""
        if self.network.state is None:
            raise ConfigError("The policy reads no states.")
        values = torch.as_tensor(np.asarray(states, dtype=np.float32))
        spread = values.std(dim=0, correction=0)
        self.network.mean.copy_(values.mean(dim=0))
        # A number that never changes in training must not blow up when it does later.
        self.network.scale.copy_(torch.where(spread > 1e-4, spread, torch.ones_like(spread)))

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write settings, weights and codebooks to a folder, which is made."""
        if not isinstance(self.codec, ResidualCodec):
            raise ConfigError("Only a policy with a ResidualCodec can be saved.")
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        settings, weights, codebooks = (folder / name for name in _FILES)
        save_file({name: value.contiguous() for name, value in self.network.state_dict().items()}, weights)
        self.codec.save(codebooks)
        settings.write_text(json.dumps(self._settings(), indent=1), encoding="utf-8")
        return folder

    @classmethod
    def load(cls, directory: str | os.PathLike[str], **changes: Any) -> SmallVLA:
        """Read what `save` wrote.

        Args:
            directory: The folder.
            changes: Settings to change, such as ``temperature``.

        Raises:
            WMRLError: It is not there, or is no such policy.
        """
        settings, weights, codebooks = (Path(directory) / name for name in _FILES)
        codec = ResidualCodec.load(codebooks)
        try:
            policy = cls(codec=codec, **json.loads(settings.read_text(encoding="utf-8")) | changes)
            policy.network.load_state_dict(load_file(weights))
        except Exception as error:  # Whatever is wrong with a foreign folder ends as one sentence.
            raise WMRLError(f"There is no small VLA in {directory}: {in_one_line(error)}") from error
        return policy

    def _settings(self) -> dict[str, Any]:
        return {
            "tasks": list(self.tasks),
            "state_size": self.state_size,
            "pictures": self.pictures,
            "view": None if self.view is None else asdict(self.view),
            "hidden": self.hidden,
            "dropout": self.dropout,
            "temperature": self.temperature,
        }

    def _context(self, tasks: Sequence[str], observations: Sequence[Observation]) -> Tensor:
        numbers = torch.tensor([self.tasks.index(task) for task in tasks], device=self.device)
        states = images = None
        if self.state_size is not None:
            states = torch.from_numpy(np.stack([np.asarray(one.state, np.float32) for one in observations]))
            states = states.to(self.device)
        if self.pictures:
            images = torch.cat([_pooled(one.image) for one in observations]).to(self.device)
        return self.network.context(numbers, states, images)

    def _next_logits(self, context: Tensor, tokens: Tensor) -> Tensor:
        return self.network.next_logits(context, tokens)

    def _all_logits(self, context: Tensor, tokens: Tensor) -> Tensor:
        return self.network.all_logits(context, tokens)


class _Network(nn.Module):
    """The equations of the module."""

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        num_tasks: int,
        state_size: int | None,
        pictures: bool,
        hidden: int,
        shape: tuple[int, int],
        dropout: float,
    ) -> None:
        super().__init__()
        tokens, codes = shape
        self.register_buffer("mean", torch.zeros(state_size or 1))
        self.register_buffer("scale", torch.ones(state_size or 1))
        self.state = None if state_size is None else _perceptron(state_size, hidden)
        self.picture = _convolutions(hidden) if pictures else None
        self.task = nn.Embedding(num_tasks, hidden)
        self.said = nn.Parameter(torch.randn(tokens, codes, hidden) / hidden**0.5)
        self.level = nn.Parameter(torch.zeros(tokens, hidden))
        self.norm = nn.LayerNorm(hidden)
        self.drop = nn.Dropout(dropout)
        self.think = _perceptron(hidden, hidden, 2 * hidden)
        self.heads = nn.Parameter(torch.randn(tokens, hidden, codes) * 0.1 / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(tokens, codes))

    def context(self, tasks: Tensor, states: Tensor | None, images: Tensor | None) -> Tensor:
        total = self.task(tasks)
        if self.state is not None and states is not None:
            # Far outside of what training showed a number says no more than at its border.
            total = total + self.state(((states - self.mean) / self.scale).clamp(-10, 10))
        if self.picture is not None and images is not None:
            total = total + self.picture(images.float() / 127.5 - 1)
        return self.drop(total)

    def next_logits(self, context: Tensor, tokens: Tensor) -> Tensor:
        k = tokens.shape[1]
        before = sum((self.said[j][tokens[:, j]] for j in range(k)), torch.zeros_like(context))
        return self._speak(context + before + self.level[k]) @ self.heads[k] + self.bias[k]

    def all_logits(self, context: Tensor, tokens: Tensor) -> Tensor:
        levels = torch.arange(tokens.shape[1], device=tokens.device)
        said = self.said[levels, tokens]
        before = torch.cat([torch.zeros_like(said[:, :1]), said[:, :-1].cumsum(dim=1)], dim=1)
        spoken = self._speak(context[:, None] + before + self.level)
        return torch.einsum("nkh,khc->nkc", spoken, self.heads) + self.bias

    def _speak(self, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        return normed + self.drop(self.think(normed))


def _perceptron(inputs: int, outputs: int, hidden: int | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden or outputs), nn.GELU(), nn.Linear(hidden or outputs, outputs)
    )


def _convolutions(hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=4, padding=2),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64 * (_SIDE // 16) ** 2, hidden),
    )


def _pooled(image: Any) -> Tensor:
    """A picture as (1, 3, 64, 64), pooled by averaging."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    return nn.functional.adaptive_avg_pool2d(pixels, _SIDE)
