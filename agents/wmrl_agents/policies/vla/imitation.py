"""Supervised training of a policy of chunks on demonstrations: what GRPO starts from.

Every step of a demonstration is an example: what was seen at it, and the eight actions that followed, as the
tokens that say them. Behind the end of an episode the robot rests, its gripper as it was last. The loss is
the mean negative log-probability of the tokens.

A run is a folder: ``sft.json`` (settings), ``metrics.jsonl`` (a line at each report),
``checkpoints/step-N/`` (the policy, and the optimiser's state), written aside and renamed. Which examples a
step sees follows from the seed and the step's number, so that a run that was killed and resumed ends, on a
processor, in the same weights bit for bit. A share of the episodes is held out, by whole episodes, and only
measured.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wmrl_agents.policies.vla.action_tokens import ACTION_SIZE, CHUNK_LENGTH, ResidualCodec
from wmrl_agents.policies.vla.imitation_config import ImitationConfig
from wmrl_agents.policies.vla.records import Observation
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_envs.libero.views import PictureView

__all__ = ["Demonstrated", "Imitation", "ImitationConfig", "chunks_of", "newest_policy"]

_BEFORE_PICTURES = {"observations": "state"}  # what runs were that do not say


@dataclass(frozen=True, eq=False)
class Demonstrated:
    """An episode to learn from.

    Attributes:
        task: The task, in words.
        actions: Of shape (T, 7), in [-1, 1].
        states: What was seen before each action, of shape (T, D) or longer; None without.
        images: Likewise pictures, uint8 of shape (T, H, W, 3) or longer.
        every: Steps from one example to the next; the first step is one. ``states`` and ``images`` show the
            steps that are examples and no others, while all actions are given.
    """

    task: str
    actions: NDArray[Any]
    states: NDArray[Any] | None = None
    images: NDArray[Any] | None = None
    every: int = 1

    @property
    def num_examples(self) -> int:
        """Steps that are examples."""
        return len(range(0, len(self.actions), self.every))


def chunks_of(actions: NDArray[Any], length: int = CHUNK_LENGTH) -> NDArray[np.float32]:
    """The chunk that follows each step of an episode.

    Args:
        actions: Of shape (T, 7), the last number the gripper.
        length: Actions in a chunk.

    Returns:
        Of shape (T, length, 7); behind the end the robot rests with its gripper as it was.

    Example:
        >>> actions = np.array([[0.5] * 6 + [-1], [0.25] * 6 + [1]])
        >>> chunks_of(actions, length=3)[1, :, [0, 6]].tolist()
        [[0.25, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    rest = np.zeros((length - 1, actions.shape[1]))
    rest[:, -1] = actions[-1, -1]
    padded = np.concatenate([actions, rest]).astype(np.float32)
    return np.stack([padded[start : start + length] for start in range(len(actions))])


class Imitation:
    """A run of supervised training.

    Args:
        episodes: Demonstrations, all with states, or with pictures, or with both.
        run_dir: Folder of the run; one that exists is gone on with, if its settings are these.
        config: Settings.
        view: How their pictures are made, which is kept with the policy.
        report: Called with each line, a dict; it is written to ``metrics.jsonl`` besides.

    Raises:
        ConfigError: An episode cannot be learned from, or the folder is that of another run.
    """

    def __init__(
        self,
        episodes: Sequence[Demonstrated],
        run_dir: str | os.PathLike[str],
        config: ImitationConfig | None = None,
        report: Callable[[dict[str, Any]], None] | None = None,
        view: PictureView | None = None,
    ) -> None:
        self.config = ImitationConfig() if config is None else config
        self.view = view
        self.run_dir = Path(run_dir)
        self.report = report
        _check(episodes)
        held = _held_out(len(episodes), self.config)
        self._train = _Examples([one for i, one in enumerate(episodes) if i not in held])
        self._held = _Examples([one for i, one in enumerate(episodes) if i in held])
        self._claim(episodes)
        self.policy, self.step = self._beginning(episodes)
        self._optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        if self.step:
            state = self._checkpoint(self.step) / "optimizer.pt"
            self._optimizer.load_state_dict(torch.load(state, weights_only=True))
        self._codes = {part: self._encode(part) for part in (self._train, self._held)}

    def run(self, until: int | None = None) -> Path:
        """Train to the end, or to a step; returns the folder of the last policy."""
        last = self.config.steps if until is None else min(until, self.config.steps)
        started, first = time.perf_counter(), self.step
        while self.step < last:
            loss = self._one_step()
            self.step += 1
            if self.step % self.config.report_every == 0 or self.step == last:
                each = (time.perf_counter() - started) / (self.step - first)
                self._say({"step": self.step, "loss": loss, **self.measure(), "seconds_per_step": each})
            if self.step % self.config.checkpoint_every == 0 or self.step == last:
                self._save()
        return self._checkpoint(self.step)

    @torch.no_grad()
    def measure(self) -> dict[str, float | None]:
        """How well the held-out episodes are said: loss, and share of first tokens that are the likeliest."""
        codes = self._codes[self._held]
        if not len(codes):
            return {"held_out_loss": None, "first_token": None}
        losses, right = [], []
        self.policy.network.eval()
        for start in range(0, len(codes), 1024):
            rows = np.arange(start, min(start + 1024, len(codes)))
            tasks, seen = self._held.at(rows)
            losses.append(len(rows) * self.policy.imitation_loss(tasks, seen, codes[rows]).item())
            said = torch.zeros((len(rows), 0), dtype=torch.long)
            likeliest = self.policy._next_logits(self.policy._context(tasks, seen), said).argmax(dim=-1)
            right.append((likeliest.numpy() == codes[rows, 0]).sum())
        return {"held_out_loss": sum(losses) / len(codes), "first_token": float(sum(right) / len(codes))}

    def _one_step(self) -> float:
        generator = np.random.default_rng([self.config.seed, self.step])
        rows = generator.integers(len(self._train), size=self.config.batch_size)
        tasks, seen = self._train.at(rows)
        if self.config.state_noise and self.policy.state_size is not None:
            seen = self._blurred(seen, generator)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self.policy.network.train()
        self._optimizer.zero_grad()
        with torch.random.fork_rng(devices=[]):  # dropout draws from torch's global generator
            torch.manual_seed(int(generator.integers(2**63)))
            loss = self.policy.imitation_loss(tasks, seen, self._codes[self._train][rows])
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def _blurred(self, seen: Sequence[Observation], generator: np.random.Generator) -> list[Observation]:
        spread = self.config.state_noise * self.policy.network.scale.numpy()
        noise = generator.normal(size=(len(seen), len(spread))).astype(np.float32) * spread
        return [
            Observation(np.asarray(one.state) + row, one.image) for one, row in zip(seen, noise, strict=True)
        ]

    def _rate(self) -> float:
        warm = max(1, self.config.steps // 20)
        rising = min(1.0, (self.step + 1) / warm)
        return (
            self.config.learning_rate * rising * 0.5 * (1 + math.cos(math.pi * self.step / self.config.steps))
        )

    def _encode(self, examples: _Examples) -> NDArray[np.int64]:
        if not len(examples):
            return np.zeros((0, self.policy.codec.num_tokens), dtype=np.int64)
        return self.policy.codec.encode(examples.chunks)

    def _claim(self, episodes: Sequence[Demonstrated]) -> None:
        """Begin a folder, or see that it is this run's."""
        about = {
            **asdict(self.config),
            "episodes": len(episodes),
            "examples": len(self._train),
            "observations": _shown(episodes[0]),
            "view": None if self.view is None else asdict(self.view),
        }
        path = self.run_dir / "sft.json"
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [
                f"{name}: {before.get(name)} -> {value}"
                for name, value in about.items()
                if before.get(name, _BEFORE_PICTURES.get(name)) != value
            ]
            if changed:
                raise ConfigError(
                    f"{self.run_dir} is a run with other settings ({', '.join(changed)}): name another one."
                )
            return
        self.run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about, indent=1), encoding="utf-8")

    def _beginning(self, episodes: Sequence[Demonstrated]) -> tuple[SmallVLA, int]:
        newest = _newest(self.run_dir)
        if newest:
            return SmallVLA.load(self._checkpoint(newest)), newest
        train, config = self._train, self.config
        codec = ResidualCodec.fit(train.chunks, codes=config.codes, seed=config.seed)
        policy = SmallVLA(
            sorted({one.task for one in episodes}),
            codec,
            state_size=None if train.states is None else train.states.shape[1],
            pictures=train.images is not None,
            view=self.view,
            hidden=config.hidden,
            dropout=config.dropout,
            seed=config.seed,
        )
        if train.states is not None:
            policy.standardise(train.states)
        return policy, 0

    def _checkpoint(self, step: int) -> Path:
        return self.run_dir / "checkpoints" / f"step-{step}"

    def _save(self) -> None:
        final = self._checkpoint(self.step)
        aside = final.with_name(f"unfinished-{self.step}")
        shutil.rmtree(aside, ignore_errors=True)
        self.policy.save(aside)
        torch.save(self._optimizer.state_dict(), aside / "optimizer.pt")
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)

    def _say(self, line: dict[str, Any]) -> None:
        with (self.run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self.report is not None:
            self.report(line)


def newest_policy(run_dir: str | os.PathLike[str]) -> Path:
    """Folder of the last policy of a run.

    Raises:
        WMRLError: There is none.
    """
    newest = _newest(Path(run_dir))
    if not newest:
        raise WMRLError(f"There is no policy in {run_dir}: no checkpoints/step-N.")
    return Path(run_dir) / "checkpoints" / f"step-{newest}"


def _newest(run_dir: Path) -> int:
    names = [path.name.removeprefix("step-") for path in run_dir.glob("checkpoints/step-*")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


class _Examples:
    """Every step of some episodes."""

    def __init__(self, episodes: Sequence[Demonstrated]) -> None:
        self.tasks = [one.task for one in episodes for _ in range(one.num_examples)]
        self.chunks = np.zeros((0, CHUNK_LENGTH, ACTION_SIZE), dtype=np.float32)
        self.states = self.images = None
        if episodes:
            self.chunks = np.concatenate([chunks_of(one.actions)[:: one.every] for one in episodes])
            self.states = _joined([(one.states, one.num_examples) for one in episodes], np.float32)
            self.images = _joined([(one.images, one.num_examples) for one in episodes], np.uint8)

    def __len__(self) -> int:
        return len(self.tasks)

    def at(self, rows: NDArray[np.int64]) -> tuple[list[str], list[Observation]]:
        """Tasks and observations of some of them."""
        seen = [
            Observation(
                None if self.states is None else self.states[row],
                None if self.images is None else self.images[row],
            )
            for row in rows
        ]
        return [self.tasks[row] for row in rows], seen


def _joined(parts: Sequence[tuple[NDArray[Any] | None, int]], dtype: Any) -> NDArray[Any] | None:
    arrays = [array[:length] for array, length in parts if array is not None]
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else None


def _held_out(count: int, config: ImitationConfig) -> set[int]:
    """Numbers of the episodes that are only measured; at least one is left to learn from."""
    chosen = np.random.default_rng([config.seed, 0x4E1D]).permutation(count)
    return set(chosen[: min(round(config.held_out * count), count - 1)].tolist())


def _check(episodes: Sequence[Demonstrated]) -> None:
    if not episodes:
        raise ConfigError("There are no demonstrations to learn from.")
    for number, fault in _faults(episodes):
        raise ConfigError(f"Demonstration {number} cannot be learned from: {fault}.")


def _faults(episodes: Sequence[Demonstrated]) -> Iterator[tuple[int, str]]:
    first = episodes[0]
    for number, one in enumerate(episodes):
        if one.actions.ndim != 2 or one.actions.shape[1] != ACTION_SIZE or not len(one.actions):
            yield number, f"its actions are of shape {one.actions.shape}, not (T, {ACTION_SIZE})"
        elif not np.isfinite(one.actions).all() or np.abs(one.actions).max() > 1 + 1e-6:
            yield number, "an action is not in [-1, 1]"
        elif (one.states is None) != (first.states is None) or (one.images is None) != (first.images is None):
            yield number, "it shows other things than the first one"
        elif one.states is None and one.images is None:
            yield number, "it shows neither states nor pictures"
        elif any(seen is not None and len(seen) < one.num_examples for seen in (one.states, one.images)):
            yield number, "it shows less than there are examples"
        elif _width(one.states) != _width(first.states):
            yield number, f"its states have {_width(one.states)} numbers, unlike those of the first one"
        elif _width(one.images) != _width(first.images):
            yield number, f"its pictures are of shape {_width(one.images)}, unlike those of the first one"


def _shown(episode: Demonstrated) -> str:
    return "state" if episode.images is None else "images" if episode.states is None else "both"


def _width(states: NDArray[Any] | None) -> tuple[int, ...] | None:
    return None if states is None else states.shape[1:]
