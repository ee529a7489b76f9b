"""Do memory and time per step stay the same over a long run?

Trains the bundled tiny coder with everything of a run in place: store, pool, map, weights, checkpoints,
metrics, and the gradient audit if asked for. Only the evaluations are simulated: an execution or a prediction
takes no time and gives a score that follows from the program's text, so that hundreds of steps take minutes::

    python benchmarks/steadiness.py                       # 200 steps
    python benchmarks/steadiness.py --steps 40 --audit

Prints a JSON object and exits with 1 if resident memory grew by more than 2 % after step 20, or if the median
step among the last 50 took more than 10 % longer or shorter than among steps 20 to 69. Time is that of
the processor on this process, which has one thread: other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

import torch

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import Parts, load_policy
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, Solution, Source

FIRST, PART = 20, 50
MOST_GROWTH, MOST_DRIFT = 0.02, 0.1


class Simulated:
    """Scores a program by a hash of its text, as an executor and as a world model."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def evaluate(self, solutions: Sequence[Solution]) -> list[Evaluation]:
        """See `Evaluator`."""
        return [self._one(solution) for solution in solutions]

    def _one(self, solution: Solution) -> Evaluation:
        number = crc32(solution.code.encode())
        if number % 5 == 0:
            return Evaluation(Outcome("error", stderr="ValueError: simulated"), source=self.source)
        score = number % 1000 / 1000
        if self.source == "world_model":
            score = 0.2 + 0.5 * score + 0.2 * (number // 1000 % 100) / 100
        return Evaluation(
            Outcome("ok", stdout="simulated"), Grade("ok", score=score, percentile=score), source=self.source
        )

    def submit(
        self, solution: Solution, group: Hashable = None, *, deadline: float = float("inf")
    ) -> Future[Evaluation]:
        """See `Executor`."""
        future: Future[Evaluation] = Future()
        future.set_result(self._one(solution))
        return future

    def close(self) -> None:
        """Nothing runs."""


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(config: GRPOConfig, run_dir: Path) -> tuple[list[int], list[float]]:
    """Resident bytes after each step, and processor seconds of each step."""
    parts = Parts(lambda source: load_policy(config, source), Simulated("real"), Simulated("world_model"))
    trainer = GRPOTrainer(config, run_dir, parts)
    memory: list[int] = []
    clock = [time.process_time()]

    def note(metrics: dict[str, Any]) -> None:
        memory.append(resident_bytes())
        clock.append(time.process_time())

    trainer.train(on_step=note)
    trainer.close()
    return memory, [end - start for start, end in pairwise(clock)]


def judge(memory: Sequence[int], seconds: Sequence[float]) -> dict[str, float | bool]:
    """Growth of memory and of time, and whether they are within bounds.

    Args:
        memory: Resident bytes after each step.
        seconds: Seconds of each step, as many.
    """
    # Medians over some steps on either side: one sample would measure when the allocator gave pages back.
    early, late = median(memory[FIRST : FIRST + 10]), median(memory[-10:])
    first, last = median(seconds[FIRST : FIRST + PART]), median(seconds[-PART:])
    growth, ratio = late / early - 1, last / first
    return {
        "memory_early_bytes": early,
        "memory_late_bytes": late,
        "memory_growth": growth,
        "seconds_step_early": first,
        "seconds_step_late": last,
        "seconds_ratio": ratio,
        "steady": growth < MOST_GROWTH and abs(ratio - 1) < MOST_DRIFT,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--audit", action="store_true", help="with the gradient audit")
    options = parser.parse_args(arguments)
    if options.steps <= FIRST:
        parser.error(f"at least {FIRST + 1} steps are needed")
    torch.set_num_threads(1)
    config = GRPOConfig(
        steps=options.steps,
        competitions=("breast-cancer", "sms-spam", "digits"),
        groups_per_step=3,
        group_size=3,
        max_turns=1,
        max_new_tokens=32,
        max_observation_tokens=64,
        min_pairs=18,
        refit_every=12,
        warmup_groups=2,
        # So small a rate that the policy stays what it is: the length of its replies must not drift.
        learning_rate=1e-9,
        audit_gradients=options.audit,
        checkpoint_every=10,
        threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(*measure(config, Path(folder) / "run"))
    print(json.dumps({"steps": options.steps, **verdict}, indent=2))
    return 0 if verdict["steady"] else 1


if __name__ == "__main__":
    sys.exit(main())
