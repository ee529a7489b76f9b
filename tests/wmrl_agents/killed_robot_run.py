"""Runs of a robot that kill themselves: ``python -m tests.wmrl_agents.killed_robot_run FOLDER``.

The robot is a dot, the policy a `SmallVLA`; see `killed_run`.
"""

import json
import os
import sys

import wmrl_agents.grpo.trainer
from tests.dots import Dot, Ruler, trainer_in
from tests.wmrl_agents.killed_run import die_at_all, half_a_line
from wmrl_agents.policies.vla import small_vla
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_agents.store import RunStore

CHANGES = {"steps": 4, "groups_per_step": 2, "checkpoint_every": 2, "seed": 3}


def make_trainer(run_dir):
    return trainer_in(run_dir, **CHANGES)


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
