"""Check that a run of the default preset came to what the README says of it.

::

    python benchmarks/check_training.py runs/check

The numbers are those of the run's own evaluations (real execution, private half) and of its log. In
`make train-check` they are made of 32 runs a task: with 8, as in the preset, they carry noise of about 0.08.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from wmrl_agents.grpo.metrics import corrections
from wmrl_agents.runs import read_metrics

RISE = 0.10
RISE_OF_VALID = 0.03
SHARE_EXECUTED = 0.15
SHARE_CORRECTED = 0.5


class Check(NamedTuple):
    """One claim and what was measured."""

    claim: str
    measured: float
    holds: bool


def check_run(run_dir: Path) -> list[Check]:
    """Everything that the default preset promises, measured on one run."""
    before, after = (
        json.loads((run_dir / f"evaluation-{when}.json").read_text("utf-8")) for when in ("before", "after")
    )
    metrics = read_metrics(run_dir)
    rise = after["score"] - before["score"]
    rise_of_valid = after["valid_score"] - before["valid_score"]
    would_use = sum(step["executions_real_would_use"] for step in metrics)
    executed = sum(step["executions"] for step in metrics) / would_use
    corrected = corrections(metrics)["both"] / len(metrics)
    return [
        Check(f"the percentile rises by at least {RISE}", rise, rise >= RISE),
        Check(f"that of valid scripts by {RISE_OF_VALID}", rise_of_valid, rise_of_valid >= RISE_OF_VALID),
        Check(f"at most {SHARE_EXECUTED:.0%} are executed", executed, executed <= SHARE_EXECUTED),
        Check(f"{SHARE_CORRECTED:.0%} of the steps are corrected", corrected, corrected >= SHARE_CORRECTED),
    ]


def main() -> int:
    """Print each check; 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", metavar="RUN", type=Path)
    checks = check_run(parser.parse_args().run_dir)
    for check in checks:
        print(f"{'ok  ' if check.holds else 'FAIL'}  {check.measured:6.3f}  {check.claim}")
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
