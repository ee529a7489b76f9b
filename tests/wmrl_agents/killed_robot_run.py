"""Runs of a robot that kill themselves: ``python -m tests.wmrl_agents.killed_robot_run FOLDER``.

The robot is a dot, the policy a `SmallVLA`; see `killed_run`.
"""

import json
import os
import sys

import wmrl_agents.grpo.trainer
from tests.dots import Dot, Ruler, dots, policy
from tests.wmrl_agents.killed_run import die_at_all, half_a_line
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.policies.vla import small_vla
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_agents.store import RunStore

CONFIG = GRPOConfig(
    task_suite="libero_10",
    steps=4,
    groups_per_step=2,
    group_size=4,
    learning_rate=0.02,
    anchor_fraction=0.5,
    min_pairs=8,
    refit_every=8,
    warmup_groups=1,
    kl_coefficient=0.01,
    simulators=5,
    checkpoint_every=2,
    seed=3,
)


def make_trainer(run_dir, **changes):
    def load(source):
        return policy() if source == CONFIG.policy else SmallVLA.load(source)

    parts = Parts(load, world_model=Ruler(), robots=dots())
    return GRPOTrainer(CONFIG.replace(**changes), run_dir, parts)


# A step plays 8 episodes of up to 32 actions in 5 seats: 4 decisions for those that begin, 4 for the others.
POINTS = {
    "while the robot moves": (Dot, "step", 600, None),
    "while it decides": (SmallVLA, "sample", 20, None),
    "while progress is judged": (Ruler, "predict", 3, None),
    "before a step is stored": (RunStore, "write", 3, None),
    "in a line of metrics": (wmrl_agents.grpo.trainer, "append_metrics", 3, half_a_line),
    "while weights are written": (small_vla, "save_file", 2, None),
    "before a checkpoint gets its name": (os, "rename", 2, None),
}


if __name__ == "__main__":
    print(json.dumps(die_at_all(POINTS, sys.argv[1], make_trainer)))
