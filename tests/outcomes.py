"""What a training run leaves behind, for comparing two runs."""

import sqlite3
from contextlib import closing

from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_agents.runs import read_metrics

QUERIES = {name: f"SELECT * FROM {name}" for name in ("trajectories", "turns", "evaluations", "pairs")}
# An episode takes its own time.
ROBOT_QUERIES = QUERIES | {
    "evaluations": 'SELECT step, "group", member, source, status, score, content, error FROM evaluations'
}


def run_outcome(run_dir, weights, queries=QUERIES):
    """All that a run leaves but times.

    Args:
        run_dir: The run.
        weights: Reads those of a checkpoint's policy from its folder.
        queries: What is read of the run's database, by name.
    """
    checkpoint = latest_checkpoint(run_dir)
    with closing(sqlite3.connect(run_dir / "run.sqlite")) as connection:
        rows = {name: connection.execute(query).fetchall() for name, query in queries.items()}
    moments = checkpoint.optimizer_state()["state"]
    return {
        "step": checkpoint.step,
        "weights": weights(checkpoint.policy_dir),
        "moments": [{name: value.tolist() for name, value in one.items()} for one in moments.values()],
        "rewards": checkpoint.reward_state(),
        "metrics": [
            {name: value for name, value in step.items() if not name.startswith("seconds_")}
            for step in read_metrics(run_dir)
        ],
        "rows": rows,
        "checkpoints": sorted(path.name for path in (run_dir / "checkpoints").iterdir()),
    }


def robot_outcome(run_dir):
    """`run_outcome` of a run whose policy is a `SmallVLA`."""

    def weights(folder):
        return {name: value.tolist() for name, value in SmallVLA.load(folder).network.state_dict().items()}

    return run_outcome(run_dir, weights, ROBOT_QUERIES)
