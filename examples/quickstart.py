"""An episode by hand: three programs, really executed and graded, each better than the last.

The agent is you. A reply goes in, what came of it comes out: an error message, then the metric's value and
its place on the leaderboard. The last step's reward is the score of the whole episode. Replace the programs
below by your own, or put a language model in their place. Run it (ten seconds)::

    python examples/quickstart.py
    python examples/quickstart.py --half private
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields

import gymnasium as gym

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.errors import WMRLError


@dataclass
class Args:
    """Settings of the episode."""

    competition: str = "breast-cancer"
    """Name or folder of a competition: a table of numbers, and chances to predict."""
    half: str = "public"
    """Half of the test rows that is scored: public to train, private to evaluate."""
    trajectory_score: str = "final"
    """Which program counts: the final or the best one."""


START = """
import os
import pandas as pd

data = os.environ["DATA_DIR"]
train, test = pd.read_csv(f"{data}/train.csv"), pd.read_csv(f"{data}/test.csv")
sample = pd.read_csv(f"{data}/sample_submission.csv")
target = sample.columns[1]
features = [column for column in test.columns if column != "id"]
"""

END = """
model.fit(train[features], train[target])
sample[target] = model.predict_proba(test[features])[:, 1]
sample.to_csv(os.environ["SUBMISSION_PATH"], index=False)
print("trained on", len(train), "rows")
"""

REPLIES = {
    "A program with a mistake": "model = LogisticRegression()",
    "The mistake mended, but a weak model": """
from sklearn.tree import DecisionTreeClassifier
model = DecisionTreeClassifier(max_depth=1)""",
    "A better model": """
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
model = make_pipeline(StandardScaler(), LogisticRegression())""",
}


def main() -> None:
    """Play the episode, and print it."""
    args = parse_args()
    env = gym.make(
        "wmrl/MLEDojo-v0",
        competition=args.competition,
        half=args.half,
        trajectory_score=args.trajectory_score,
        max_turns=len(REPLIES),
    )
    observation, _ = env.reset()
    print(observation)
    for title, model in REPLIES.items():
        observation, reward, *_ = env.step(f"```python{START}{model}{END}```")
        print(f"\n----- {title} -----\n{observation}")
    print(f"\nThe episode is over. Reward (leaderboard percentile): {reward:.2f}")
    env.close()


def parse_args() -> Args:
    """Read the settings from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for field in fields(Args):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default, help="(%(default)s)")
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    try:
        main()
    except WMRLError as error:
        print(f"quickstart.py: {error}", file=sys.stderr)
        sys.exit(2)
