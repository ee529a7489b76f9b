"""`ProgressModel`: a small model of progress, trained here on a processor from rollouts, good and failed.

It has Robometer's interface: eight uniformly spaced frames in, eight values out, each from its frame, those
before it and the task. It knows the tasks that it was trained on and nothing else; where there is neither an
accelerator nor Robometer's weights, it is the world model for a robot.

*Labels.* Frame t of a success of T frames has the progress t / (T - 1). Of a failure only so much is known:
it did not arrive. Its frame t has min(t / (L - 1), ceiling), with L the median length of the task's
successes: it is taken to make headway like a success until the ceiling (0.5), and to get no further. Labels
that are given with a rollout stand in the place of both.

*Samples.* A stretch of a rollout between two random frames, eight frames of it: so that the number of a frame
says nothing of its label. One in five is played to the end of the stretch and back again, with labels that
fall, so that losing ground is seen too.

*Network.* Images are pooled to 32 x 32 pixels and go through three convolutions, states are standardised and
go through one layer; a frame's features, what changed in them since the first frame, and an embedding of the
task go through a GRU, and a sigmoid ends it. The loss is the mean square error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wmrl_envs.errors import ConfigError, WMRLError, in_one_line
from wmrl_envs.libero.views import PictureView
from wmrl_rewards.errors import RewardError
from wmrl_rewards.prediction import PredictionRequest
from wmrl_rewards.world_models.progress_values import (
    NUM_FRAMES,
    Progress,
    ProgressWorldModel,
    Reduction,
    image_fault,
    uniform_indices,
)

__all__ = ["ProgressModel", "ProgressRollout", "progress_labels"]

Observed = Literal["images", "states"]
_SIDE = 32
_REWOUND = 0.2
_BATCH = 256


@dataclass(frozen=True)
class ProgressRollout:
    """A rollout to learn from.

    Attributes:
        frames: Images, uint8 (T, H, W, 3), or states, float (T, D); T at least 2.
        task: The task, in the words that are asked with later.
        success: Whether it was solved at the last frame.
        labels: Progress at each frame, in [0, 1], if it is known better than by the rule of this module.
    """

    frames: Any
    task: str
    success: bool
    labels: Sequence[float] | None = None


class ProgressModel(ProgressWorldModel):
    """A small model of progress; see the module for what it learns.

    Args:
        tasks: The tasks that it is to know.
        observed: What frames are: ``images`` or ``states``.
        state_size: Number of values of a state; needed for states.
        view: How images are made, if it is known: it was trained on such, and judges no others.
        hidden: Width of the network.
        reduction: How a score is made of the eight values; see `progress_values`.
        seed: Decides the first weights.

    Raises:
        ConfigError: A setting is out of its range.

    Example:
        >>> line = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> there, halfway = ProgressRollout(line, "go", True), ProgressRollout(line / 2, "go", False)
        >>> model = ProgressModel(["go"], observed="states", state_size=1, reduction="final")
        >>> losses = model.fit([there, halfway] * 4, steps=150)
        >>> asked = [PredictionRequest("go", frames=rollout.frames) for rollout in (there, halfway)]
        >>> good, bad = (prediction.score for prediction in model.predict(asked))
        >>> good > 0.8, bad < 0.7
        (True, True)
    """

    def __init__(
        self,
        tasks: Sequence[str],
        *,
        observed: Observed = "images",
        state_size: int | None = None,
        view: PictureView | Mapping[str, Any] | None = None,
        hidden: int = 64,
        reduction: Reduction = "potential",
        seed: int = 0,
    ) -> None:
        super().__init__(reduction)
        if not tasks or len(set(tasks)) != len(tasks):
            raise ConfigError("A progress model needs at least one task, and none of them twice.")
        if observed not in get_args(Observed):
            raise ConfigError(f"observed must be 'images' or 'states', not {observed!r}.")
        if hidden < 1 or (observed == "states") != (state_size is not None and state_size > 0):
            raise ConfigError("hidden must be at least 1; state_size goes with states, and only with them.")
        if view is not None and observed != "images":
            raise ConfigError("A progress model that reads states has no view of pictures.")
        self.view = PictureView(**view) if isinstance(view, Mapping) else view
        self.tasks = tuple(tasks)
        self.observed = observed
        self.state_size = state_size
        self.hidden = hidden
        self.fitted = False
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = _Network(len(self.tasks), state_size, hidden)

    @property
    def fingerprint(self) -> str:
        """Names everything that a prediction depends on besides its request, weights included."""
        digest = hashlib.sha256(json.dumps([self._settings(), self.reduction]).encode())
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(name.encode() + value.numpy().tobytes())
        return digest.hexdigest()

    def fit(
        self,
        rollouts: Sequence[ProgressRollout],
        *,
        steps: int = 1000,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        failure_ceiling: float = 0.5,
        seed: int = 0,
        report: Callable[[int, float], None] | None = None,
    ) -> list[float]:
        """Learn from rollouts; goes on from what was learned before.

        Args:
            rollouts: Good and failed ones.
            steps: Steps of AdamW; the rate falls to 0 along a cosine.
            batch_size: Stretches in a step.
            learning_rate: The first rate.
            failure_ceiling: Progress that a failure is taken to end at, at most.
            seed: Decides which stretches are drawn.
            report: Called with the number of each step and its loss.

        Returns:
            The loss of each step.

        Raises:
            RewardError: A rollout cannot be learned from; the sentence names its number.
        """
        frames = [self._learnable(number, rollout) for number, rollout in enumerate(rollouts)]
        if not frames:
            raise RewardError("A progress model needs at least one rollout to learn from.")
        labels = progress_labels(rollouts, failure_ceiling)
        tasks = torch.tensor([self.tasks.index(rollout.task) for rollout in rollouts])
        if self.observed == "states" and not self.fitted:
            self.network.standardise(torch.from_numpy(np.concatenate(frames)))
        generator = np.random.default_rng(seed)
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        losses = []
        self.network.train()
        for step in range(steps):
            chosen = generator.integers(len(frames), size=batch_size)
            picks = [_stretch(len(frames[i]), generator) for i in chosen]
            seen = np.stack([frames[i][pick] for i, pick in zip(chosen, picks, strict=True)])
            wanted = np.stack([labels[i][pick] for i, pick in zip(chosen, picks, strict=True)])
            found = self.network(torch.from_numpy(seen), tasks[chosen])
            loss = nn.functional.mse_loss(found, torch.from_numpy(wanted))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if report is not None:
                report(step, losses[-1])
        self.fitted = True
        return losses

    @torch.no_grad()
    def progress(self, requests: Sequence[PredictionRequest]) -> list[Progress]:
        """Progress at each of eight frames. See `ProgressWorldModel`.

        Args:
            requests: Each with one of the tasks, and ``frames`` of the kind that was learned from, T at
                least 1.
        """
        faults = [self._fault(request.task, request.frames) for request in requests]
        good = [r for r, fault in zip(requests, faults, strict=True) if fault is None]
        self.network.eval()
        rows: list[list[float]] = []
        for start in range(0, len(good), _BATCH):
            batch = good[start : start + _BATCH]
            picked = [_prepared(r.frames[uniform_indices(len(r.frames))]) for r in batch]
            tasks = torch.tensor([self.tasks.index(r.task) for r in batch])
            rows += self.network(torch.from_numpy(np.stack(picked)), tasks).tolist()
        seen = iter(rows)
        return [Progress(tuple(next(seen))) if f is None else Progress(error=f) for f in faults]

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``progress.json`` and ``progress.safetensors`` to a folder, which is made."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.network.state_dict(), folder / "progress.safetensors")
        text = json.dumps({**self._settings(), "fitted": self.fitted}, indent=1)
        (folder / "progress.json").write_text(text, encoding="utf-8")
        return folder

    @classmethod
    def load(cls, directory: str | os.PathLike[str], reduction: Reduction = "potential") -> ProgressModel:
        """Read what `save` wrote.

        Raises:
            WMRLError: It is not there, or is not a progress model.
        """
        folder = Path(directory)
        try:
            settings = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
            fitted = bool(settings.pop("fitted"))
            model = cls(**settings, reduction=reduction)
            model.network.load_state_dict(load_file(folder / "progress.safetensors"))
        except ConfigError:
            raise
        except Exception as error:  # Whatever is wrong with a foreign folder ends as one sentence.
            raise WMRLError(f"There is no progress model in {folder}: {in_one_line(error)}") from error
        model.fitted = fitted
        return model

    def _settings(self) -> dict[str, Any]:
        settings = {
            "tasks": list(self.tasks),
            "observed": self.observed,
            "state_size": self.state_size,
            "hidden": self.hidden,
        }
        return settings if self.view is None else {**settings, "view": asdict(self.view)}

    def _fault(self, task: str, frames: Any) -> str | None:
        if not self.fitted:
            return "The progress model has not been fitted yet."
        if task not in self.tasks:
            return f"The progress model was not trained on the task {task[:80]!r}."
        return self._frames_fault(frames)

    def _frames_fault(self, frames: Any) -> str | None:
        if self.observed == "images" or frames is None:
            return image_fault(frames) or self._view_fault(frames)
        if not isinstance(frames, np.ndarray) or not np.issubdtype(frames.dtype, np.floating):
            return "frames must be a numpy array of numbers: the progress model reads states."
        if frames.ndim != 2 or frames.shape[1] != self.state_size or not len(frames):
            return f"frames must be states of shape (T, {self.state_size}), not {frames.shape}."
        return None if np.isfinite(frames).all() else "frames hold a number that is not finite."

    def _view_fault(self, frames: Any) -> str | None:
        if self.view is None or frames.shape[1:3] == (self.view.image_size,) * 2:
            return None
        return (
            f"The progress model was trained on pictures of {self.view.image_size} x {self.view.image_size} "
            f"pixels, and is shown some of {frames.shape[1]} x {frames.shape[2]}."
        )

    def _learnable(self, number: int, rollout: ProgressRollout) -> NDArray[Any]:
        fault = self._frames_fault(rollout.frames)
        if rollout.task not in self.tasks:
            fault = f"its task {rollout.task[:80]!r} is none of the model's."
        elif fault is None and len(rollout.frames) < 2:
            fault = "it has a single frame."
        elif rollout.labels is not None and not _are_labels(rollout.labels, len(rollout.frames)):
            fault = "labels must be one number in [0, 1] for each frame."
        if fault is not None:
            raise RewardError(f"Rollout {number} cannot be learned from: {fault}")
        return _prepared(rollout.frames)


class _Network(nn.Module):
    """From eight prepared frames (batch, 8, ...) and task numbers to progress (batch, 8)."""

    mean: Tensor
    scale: Tensor

    def __init__(self, num_tasks: int, state_size: int | None, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(state_size or 1))
        self.register_buffer("scale", torch.ones(state_size or 1))
        self.is_state = state_size is not None
        if state_size is not None:
            self.look: nn.Module = nn.Sequential(nn.Linear(state_size, hidden), nn.GELU())
        else:
            channels = (3, 16, 32, 32)
            layers: list[nn.Module] = []
            for before, after in pairwise(channels):
                layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GELU()]
            flat = channels[-1] * (_SIDE // 8) ** 2
            self.look = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, hidden), nn.GELU())
        self.task = nn.Embedding(num_tasks, hidden)
        self.remember = nn.GRU(3 * hidden, hidden, batch_first=True)
        self.judge = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def standardise(self, states: Tensor) -> None:
        self.mean.copy_(states.mean(dim=0))
        # A value that never changes says nothing, and must not blow up when it does one day.
        spread = states.std(dim=0, correction=0)
        self.scale.copy_(torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def forward(self, frames: Tensor, tasks: Tensor) -> Tensor:
        flat = frames.flatten(0, 1)
        scaled = (flat - self.mean) / self.scale if self.is_state else flat.float() / 127.5 - 1
        features = self.look(scaled).unflatten(0, frames.shape[:2])
        changed = features - features[:, :1]
        task = self.task(tasks)[:, None].expand_as(features)
        remembered, _ = self.remember(torch.cat([features, changed, task], dim=-1))
        return torch.sigmoid(self.judge(remembered).squeeze(-1))


def progress_labels(
    rollouts: Sequence[ProgressRollout], failure_ceiling: float = 0.5
) -> list[NDArray[np.float32]]:
    """Progress of each frame of each rollout, by the rule of this module.

    Where a task has no success, its failures are as long as one.

    Example:
        >>> states = np.zeros((5, 1), dtype=np.float32)
        >>> rollouts = [ProgressRollout(states, "go", solved) for solved in (True, False)]
        >>> [labels.tolist() for labels in progress_labels(rollouts)]
        [[0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.5, 0.5, 0.5]]
    """
    if not 0 <= failure_ceiling <= 1:
        raise ConfigError(f"failure_ceiling must be in [0, 1], not {failure_ceiling}.")
    found: list[NDArray[np.float32]] = []
    for rollout in rollouts:
        length = len(rollout.frames)
        if rollout.labels is not None:
            found.append(np.asarray(rollout.labels, dtype=np.float32))
            continue
        lengths = [len(other.frames) for other in rollouts if other.success and other.task == rollout.task]
        usual = length if rollout.success or not lengths else float(np.median(lengths))
        ceiling = 1.0 if rollout.success else failure_ceiling
        steps = np.arange(length) / max(1.0, usual - 1)
        found.append(np.minimum(steps, ceiling).astype(np.float32))
    return found


def _are_labels(labels: Sequence[float], length: int) -> bool:
    array = np.asarray(labels, dtype=np.float64)
    return array.shape == (length,) and bool(((array >= 0) & (array <= 1)).all())


def _stretch(length: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Eight frames between two random ones, in one of five cases there and back."""
    first, last = np.sort(generator.integers(length, size=2))
    if generator.random() < _REWOUND:
        back = generator.integers(first, last + 1)
        path = np.concatenate([np.arange(first, last + 1), np.arange(last - 1, back - 1, -1)])
    else:
        path = np.arange(first, last + 1)
    return path[uniform_indices(len(path), NUM_FRAMES)]


def _prepared(frames: NDArray[Any]) -> NDArray[Any]:
    """States as float32, images as uint8 of shape (T, 3, 32, 32), pooled by averaging."""
    if frames.ndim == 2:
        return frames.astype(np.float32)
    images = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    return nn.functional.adaptive_avg_pool2d(images, _SIDE).round().to(torch.uint8).numpy()
