"""Chunks of robot actions as tokens: residual vector quantisation.

A chunk is 8 actions of 7 numbers. Seven quantisers of 128 codes each say it as seven tokens: the first picks
the nearest of 128 chunks, each later one the nearest correction of what is still missing,

    r_0 = e(chunk),   c_k = argmin_c |r_k - B_k[c]|,   r_{k+1} = r_k - B_k[c_k],   chunk' = d(sum_k B_k[c_k]).

Two codecs share this interface. `ResidualCodec`, of ours, has e and d the identity and codebooks by k-means,
level after level. `PublishedCodec` reads MiniVLA's (Stanford-ILIAD/pretrain_vq, the format of VQ-BeT), where
e and d are small networks. The published program decodes only the first of the eight actions; here it is
all.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wmrl_envs.errors import ConfigError, WMRLError, in_one_line

__all__ = [
    "ACTION_SIZE",
    "CHUNK_LENGTH",
    "NUM_CODES",
    "NUM_QUANTISERS",
    "ActionCodec",
    "ActionStatistics",
    "PublishedCodec",
    "ResidualCodec",
    "gripper_to_libero",
]

CHUNK_LENGTH, ACTION_SIZE = 8, 7
NUM_QUANTISERS, NUM_CODES = 7, 128

_PARTS = ("encoder", "decoder", "vq_embedding")
Floats = NDArray[np.float32]
Codes = NDArray[np.int64]


class ActionCodec(ABC):
    """Turns chunks of actions into codes and back.

    Attributes:
        codebooks: Of shape (quantisers, codes, width).
    """

    codebooks: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of a chunk."""
        return int(self.codebooks.shape[0])

    @property
    def num_codes(self) -> int:
        """Different codes of each token."""
        return int(self.codebooks.shape[1])

    @torch.no_grad()
    def encode(self, chunks: ArrayLike) -> Codes:
        """Codes of chunks.

        Args:
            chunks: Of shape (N, 8, 7).

        Returns:
            Of shape (N, tokens), each at least 0 and below the number of codes.
        """
        array = np.asarray(chunks, dtype=np.float32)
        if array.ndim != 3 or array.shape[1:] != (CHUNK_LENGTH, ACTION_SIZE):
            raise ConfigError(
                f"Chunks must be of shape (N, {CHUNK_LENGTH}, {ACTION_SIZE}), not {array.shape}."
            )
        residual = self._compress(torch.from_numpy(array).flatten(1))
        codes = []
        for book in self.codebooks:
            code = torch.cdist(residual, book, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
            codes.append(code)
            residual = residual - book[code]
        return torch.stack(codes, dim=1).numpy()

    @torch.no_grad()
    def decode(self, codes: ArrayLike) -> Floats:
        """Whole chunks of codes.

        Args:
            codes: Of shape (N, tokens).

        Returns:
            Of shape (N, 8, 7).

        Raises:
            ConfigError: There is no such code.
        """
        array = np.asarray(codes, dtype=np.int64)
        if array.ndim != 2 or array.shape[1] != self.num_tokens:
            raise ConfigError(f"Codes must be of shape (N, {self.num_tokens}), not {array.shape}.")
        if ((array < 0) | (array >= self.num_codes)).any():
            raise ConfigError(f"Codes must be from 0 to {self.num_codes - 1}.")
        levels = torch.arange(self.num_tokens)
        total = self.codebooks[levels, torch.from_numpy(array)].sum(dim=1)
        return self._restore(total).reshape(-1, CHUNK_LENGTH, ACTION_SIZE).numpy()

    @abstractmethod
    def _compress(self, chunks: Tensor) -> Tensor:
        """From (N, 56) to what is quantised."""

    @abstractmethod
    def _restore(self, quantised: Tensor) -> Tensor:
        """From the sum of codes to (N, 56)."""


class ResidualCodec(ActionCodec):
    """Codebooks by k-means on chunks as they go to the environment, in [-1, 1].

    The gripper is decoded to exactly -1 (open) or 1 (closed), whichever is nearer; the rest is clipped.

    Args:
        codebooks: Of shape (quantisers, codes, 56).

    Example:
        >>> moves = np.random.default_rng(0).uniform(-1, 1, (300, 8, 7))
        >>> moves[..., 6] = np.sign(moves[:, :1, 6])
        >>> codec = ResidualCodec.fit(moves, quantisers=3, codes=16)
        >>> codes = codec.encode(moves)
        >>> codes.shape, codec.decode(codes).shape
        ((300, 3), (300, 8, 7))
    """

    def __init__(self, codebooks: Tensor) -> None:
        if codebooks.ndim != 3 or codebooks.shape[2] != CHUNK_LENGTH * ACTION_SIZE:
            raise ConfigError(f"Codebooks must be of shape (quantisers, codes, 56), not {codebooks.shape}.")
        self.codebooks = codebooks.float().contiguous()

    @classmethod
    def fit(
        cls, chunks: ArrayLike, *, quantisers: int = NUM_QUANTISERS, codes: int = NUM_CODES, seed: int = 0
    ) -> ResidualCodec:
        """Learn codebooks, level after level, each on what the ones before it leave.

        A level with fewer different residuals than codes fills up with zeros, which change nothing.

        Args:
            chunks: Of shape (N, 8, 7), in [-1, 1].
            quantisers: Number of levels.
            codes: Codes of a level.
            seed: Seed of the first centres.
        """
        from sklearn.cluster import KMeans

        residual = np.asarray(chunks, dtype=np.float64).reshape(len(np.asarray(chunks)), -1)
        if residual.shape[1] != CHUNK_LENGTH * ACTION_SIZE or not np.isfinite(residual).all():
            raise ConfigError("Chunks to learn codes from must be finite numbers of shape (N, 8, 7).")
        books = np.zeros((quantisers, codes, residual.shape[1]))
        for level in range(quantisers):
            different = len(np.unique(residual.round(9), axis=0))
            clusters = KMeans(min(codes, different), n_init=1, random_state=seed + level).fit(residual)
            books[level, : len(clusters.cluster_centers_)] = clusters.cluster_centers_
            residual = residual - clusters.cluster_centers_[clusters.labels_]
        return cls(torch.from_numpy(books))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the codebooks to a safetensors file."""
        save_file({"codebooks": self.codebooks}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ResidualCodec:
        """Read what `save` wrote.

        Raises:
            WMRLError: It is not there, or holds no codebooks.
        """
        try:
            return cls(load_file(path)["codebooks"])
        except Exception as error:  # Whatever is wrong with a foreign file ends as one sentence.
            raise WMRLError(f"There are no codebooks of actions in {path}: {in_one_line(error)}") from error

    def _compress(self, chunks: Tensor) -> Tensor:
        return chunks

    def _restore(self, quantised: Tensor) -> Tensor:
        chunks = quantised.clamp(-1, 1).reshape(-1, CHUNK_LENGTH, ACTION_SIZE)
        closed = torch.where(chunks[..., -1:] > 0, 1.0, -1.0)
        return torch.cat([chunks[..., :-1], closed], dim=-1)


class PublishedCodec(ActionCodec):
    """MiniVLA's codec: a folder with ``config.json`` and ``checkpoints/model.pt``.

    Its chunks are normalised by the statistics of LIBERO-90, with the gripper in [0, 1].

    Args:
        config: ``input_dim_h`` and ``input_dim_w`` (8 and 7), ``vqvae_groups``, ``vqvae_n_embed``,
            ``n_latent_dims`` and ``act_scale``.
        state: ``encoder``, ``decoder`` and ``vq_embedding``, in the names of the published file.

    Raises:
        WMRLError: The weights are not those of such a codec.
    """

    def __init__(self, config: Mapping[str, Any], state: Mapping[str, Mapping[str, Tensor]]) -> None:
        try:
            size = (int(config["input_dim_h"]), int(config["input_dim_w"]))
            shape = tuple(int(config[name]) for name in ("vqvae_groups", "vqvae_n_embed", "n_latent_dims"))
            self.scale = float(config.get("act_scale", 1.0))
            books = [state["vq_embedding"][f"layers.{i}._codebook.embed"][0] for i in range(shape[0])]
            self.codebooks = torch.stack(books).float()
            self.config, self.state = dict(config), {name: dict(state[name]) for name in _PARTS}
            self.encoder = _perceptron(state["encoder"])
            self.decoder = _perceptron(state["decoder"])
            ends = (self.encoder[0].in_features, self.encoder[-1].out_features, self.decoder[-1].out_features)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise WMRLError(
                f"These are not the weights of a residual codec of actions: {error!r}."
            ) from error
        wanted = (CHUNK_LENGTH * ACTION_SIZE, shape[2], CHUNK_LENGTH * ACTION_SIZE)
        if size != (CHUNK_LENGTH, ACTION_SIZE) or tuple(self.codebooks.shape) != shape or ends != wanted:
            raise WMRLError(
                f"The codec is for chunks of {size} with codebooks of shape {tuple(self.codebooks.shape)}; "
                f"chunks of {(CHUNK_LENGTH, ACTION_SIZE)} and codebooks of {shape} are needed."
            )

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> PublishedCodec:
        """Read the published folder; nothing in it is executed.

        Raises:
            WMRLError: It is not there, or is not a codec.
        """
        folder = Path(directory)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            state = torch.load(folder / "checkpoints" / "model.pt", map_location="cpu", weights_only=True)
        except Exception as error:  # As above.
            raise WMRLError(f"There is no codec of actions in {folder}: {in_one_line(error)}") from error
        return cls(config, state)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write it as the published folder, without the optimiser's state."""
        folder = Path(directory)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        torch.save(self.state, folder / "checkpoints" / "model.pt")
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")

    def _compress(self, chunks: Tensor) -> Tensor:
        return self.encoder(chunks / self.scale)

    def _restore(self, quantised: Tensor) -> Tensor:
        return self.decoder(quantised) * self.scale


def _perceptron(state: Mapping[str, Tensor]) -> nn.Sequential:
    """Linear layers with ReLU between them: ``encoder.0``, ``encoder.2`` ... and ``fc``."""
    numbers = sorted(int(name.split(".")[1]) for name in state if name.endswith(".weight") and name[0] == "e")
    names = [*(f"encoder.{number}" for number in numbers), "fc"]
    layers: list[nn.Module] = []
    for name in names:
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight.float(), "bias": bias.float()})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).requires_grad_(False)


@dataclass(frozen=True)
class ActionStatistics:
    """How a data set's actions were normalised: the range from the 1st to the 99th percentile became [-1, 1].

    Attributes:
        q01: 1st percentiles, of length 7.
        q99: 99th percentiles, of length 7.
        mask: Which numbers were normalised; the gripper is not.
    """

    q01: NDArray[np.float64]
    q99: NDArray[np.float64]
    mask: NDArray[np.bool_]

    @classmethod
    def load(cls, path: str | os.PathLike[str], dataset: str | None = None) -> ActionStatistics:
        """Read ``dataset_statistics.json``.

        Args:
            path: The file.
            dataset: Which data set's; may be left out if the file has one.

        Raises:
            WMRLError: The file cannot be read, or lacks the data set.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            names = list(found)
            if dataset is None and len(names) != 1:
                raise WMRLError(f"{path} has the data sets {', '.join(names)}: name one.")
            if dataset is not None and dataset not in found:
                raise WMRLError(f"{path} has no data set '{dataset}', only {', '.join(names)}.")
            action = found[dataset or names[0]]["action"]
            low, high = (np.asarray(action[name], dtype=np.float64) for name in ("q01", "q99"))
            mask = np.asarray(action.get("mask", [True] * (len(low) - 1) + [False]), dtype=bool)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise WMRLError(f"{path} does not hold statistics of actions: {error!r}.") from error
        if not low.shape == high.shape == mask.shape == (ACTION_SIZE,):
            raise WMRLError(f"{path} has statistics of {low.shape} numbers; actions have {ACTION_SIZE}.")
        return cls(low, high, mask)

    def unnormalise(self, actions: ArrayLike) -> NDArray[np.float64]:
        """From [-1, 1] to the units of the data set; the last axis is an action."""
        array = np.asarray(actions, dtype=np.float64)
        return np.where(self.mask, 0.5 * (array + 1) * (self.q99 - self.q01) + self.q01, array)

    def normalise(self, actions: ArrayLike) -> NDArray[np.float64]:
        """The inverse of `unnormalise`; a number that never changes becomes 0."""
        array = np.asarray(actions, dtype=np.float64)
        width = self.q99 - self.q01
        scaled = 2 * (array - self.q01) / np.where(width > 0, width, 1) - 1
        return np.where(self.mask, np.where(width > 0, scaled, 0), array)


def gripper_to_libero(actions: ArrayLike) -> NDArray[np.float64]:
    """From the data set's gripper, 1 for open and 0 for closed, to LIBERO's, -1 for open and 1 for closed.

    It is 2g - 1, then only its sign, then turned round. Exactly half way, where the sign would be 0 and the
    gripper would stay as it is, counts as closed.

    Example:
        >>> gripper_to_libero([[0, 0, 0, 0, 0, 0, g] for g in (1.0, 0.7, 0.5, 0.2)])[:, -1].tolist()
        [-1.0, -1.0, 1.0, 1.0]
    """
    array = np.array(actions, dtype=np.float64)
    array[..., -1] = np.where(2 * array[..., -1] - 1 > 0, -1.0, 1.0)
    return array
