"""Checkpoints: ``checkpoints/step-N`` holds all that the steps from N on depend on.

- ``policy/``: the policy's own directory format;
- ``optimizer.pt``: AdamW's moments, tensors and numbers only (read back with ``weights_only=True``);
- ``audit.pt``: the window of the gradient audit, if there is one;
- ``state.json``: number of finished steps, versions of the prompts, state of the rewards (sampler of the
  anchors, map, ρ, η̂²_cal, how far the pool of pairs was read).

There is no generator's state and no position of a sampler: every draw follows from the run's seed and the
step (see `draws`). A checkpoint is written aside and renamed, so one that has its name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wmrl_agents.grpo.audit import GradientAudit
from wmrl_agents.grpo.roles import TrainablePolicy

__all__ = ["Checkpoint", "latest_checkpoint", "newest_weights", "save_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        path: Its folder.
        step: Number of steps that were finished when it was made.
    """

    path: Path
    step: int

    @property
    def policy_dir(self) -> Path:
        """Directory of the policy."""
        return self.path / "policy"

    @property
    def audit_file(self) -> Path:
        """File of the gradient audit's window, there if the run has an audit."""
        return self.path / "audit.pt"

    def prompt_versions(self) -> dict[str, str]:
        """Versions of the texts that it was made with; empty if it is older than that record."""
        state: dict[str, Any] = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return state.get("prompts", {})

    def reward_state(self) -> dict[str, Any]:
        """State of the `WorldModelReward`."""
        state: dict[str, Any] = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return state["reward"]

    def optimizer_state(self) -> dict[str, Any]:
        """State of the optimiser, on the CPU."""
        state: dict[str, Any] = torch.load(self.path / "optimizer.pt", map_location="cpu", weights_only=True)
        return state


def _all_checkpoints(folder: Path) -> list[Checkpoint]:
    """Whole checkpoints, oldest first."""
    numbers = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    steps = sorted(int(number) for number in numbers if number.isdecimal())
    return [Checkpoint(folder / f"step-{step}", step) for step in steps]


def latest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run, None if it has none."""
    found = _all_checkpoints(run_dir / "checkpoints")
    return found[-1] if found else None


def newest_weights(run_dir: Path, policy: str) -> str | Path:
    """Where the newest policy of a run is: in its last checkpoint, or, before the first, where it began.

    Args:
        run_dir: The run.
        policy: The policy that it began with.
    """
    checkpoint = latest_checkpoint(run_dir)
    return policy if checkpoint is None else checkpoint.policy_dir


def save_checkpoint(
    run_dir: Path,
    step: int,
    *,
    policy: TrainablePolicy,
    optimizer: torch.optim.Optimizer,
    reward_state: dict[str, Any],
    prompts: dict[str, str],
    audit: GradientAudit | None,
    keep: int,
) -> Checkpoint:
    """Write a checkpoint and drop the oldest ones; one of the same step that is there already is kept.

    Args:
        run_dir: The run.
        step: Number of finished steps.
        policy: The policy after them.
        optimizer: Its optimiser.
        reward_state: State of the rewards, fit for JSON.
        prompts: Versions of the texts that the run depends on.
        audit: The gradient audit, if there is one.
        keep: Number of checkpoints kept, this one included.
    """
    folder = run_dir / "checkpoints"
    folder.mkdir(exist_ok=True)
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover)
    partial, final = folder / f"step-{step}.partial", folder / f"step-{step}"
    if final.is_dir():  # the same steps leave the same state, and a folder cannot be renamed over another
        return Checkpoint(final, step)
    partial.mkdir()
    policy.save(partial / "policy")
    torch.save(optimizer.state_dict(), partial / "optimizer.pt")
    if audit is not None:
        audit.save(partial / "audit.pt")
    state = {"step": step, "prompts": prompts, "reward": reward_state}
    (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")
    os.rename(partial, final)
    for old in _all_checkpoints(folder)[:-keep]:
        shutil.rmtree(old.path)
    return Checkpoint(final, step)
