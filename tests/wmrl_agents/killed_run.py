"""Training runs that kill themselves: ``python -m tests.wmrl_agents.killed_run FOLDER``.

Nothing is caught, flushed or closed: each process gets SIGKILL at its point of the code. Prints a JSON object
of how each of them ended.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

import wmrl_agents.grpo.checkpoint
import wmrl_agents.grpo.trainer
from tests.stubs import TabularPolicy, TokenEvaluator
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.store import RunStore
from wmrl_rewards import WorldModelReward

CONFIG = GRPOConfig(
    steps=7,
    groups_per_step=4,
    group_size=4,
    max_turns=2,
    learning_rate=0.05,
    anchor_fraction=0.5,
    min_pairs=8,
    refit_every=8,
    warmup_groups=2,
    checkpoint_every=2,
    seed=11,
)


def parts():
    world_model = TokenEvaluator("world_model", lambda share: 0.25 + 0.5 * share**2, missing=4)
    return Parts(TabularPolicy.load, TokenEvaluator(), world_model)


def half_a_line(run_dir, metrics):
    with (Path(run_dir) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "sco')


# Where a run dies, in which call, and what is done there first. Each lies in the middle of the run.
POINTS = {
    "in an execution": (TokenEvaluator, "one", 130, None),
    "in a backward pass": (TabularPolicy, "token_statistics", 9, None),
    "before pairs are kept": (WorldModelReward, "observe", 4, None),
    "before a step is stored": (RunStore, "write", 6, None),
    "in a line of metrics": (wmrl_agents.grpo.trainer, "append_metrics", 4, half_a_line),
    "in a checkpoint": (torch, "save", 4, None),
    "before a checkpoint gets its name": (os, "rename", 2, None),
    "before old checkpoints go": (wmrl_agents.grpo.checkpoint, "_all_checkpoints", 4, None),
}


def arm(owner, name, call, first):
    """Make a call of a function the last thing that this process does."""
    original = getattr(owner, name)
    calls = 0

    def deadly(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            if first is not None:
                first(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, deadly)


def die(point, train):
    """Run in a process of its own until it dies.

    Args:
        point: Where: owner, name and number of a call, and what is done there first.
        train: Runs to the end, if nothing stops it.

    Returns:
        The signal that ended the process; None if it came to its end.
    """
    child = os.fork()
    if child == 0:
        arm(*point)
        train()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def die_at_all(points, folder, make_trainer):
    """One run for each point, in a folder of its name; returns the signals that ended them."""
    return {
        name: die(point, lambda name=name: make_trainer(Path(folder) / name).train())
        for name, point in points.items()
    }


if __name__ == "__main__":
    signals = die_at_all(POINTS, sys.argv[1], lambda run_dir: GRPOTrainer(CONFIG, run_dir, parts()))
    print(json.dumps(signals))
