r"""How often a world model that guesses is taken for one that sees.

::

    python benchmarks/blindness.py
    python benchmarks/blindness.py --groups 400 --sizes 4,8

Scores and guesses of each kind are drawn independently of each other, group by group, and `BlindnessTest`
looks after each group. The table has, in percent of the runs: ever ``shown`` to see (about 1 in 64 groups),
not found ``blind`` by the first eight groups (1), and beside each what a normal z would say in its place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from wmrl_rewards import BlindnessTest

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
KINDS: dict[str, Draw] = {
    "one success": lambda rng, n: rng.permutation(np.eye(n)[0]),
    "half of them": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "evenly spread": lambda rng, n: rng.random(n),
}
WARM_UP = 8


def looks(rng: np.random.Generator, size: int, scores: Draw, guesses: Draw, groups: int) -> NDArray[np.bool_]:
    """What one run says: shown, z of 3, not found blind, z of 2.326."""
    test = BlindnessTest(warmup_groups=WARM_UP)
    said = np.zeros(4, dtype=bool)
    for number in range(1, groups + 1):
        test.observe(guesses(rng, size), scores(rng, size))
        z = test.z or 0.0
        said[:2] |= (test.shown, z >= 3)
        if number == WARM_UP:
            said[2:] = test.judges and not test.blind, z >= 2.326
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="2,4,8,16,32", help="members of a group, with commas between them")
    parser.add_argument("--groups", type=int, default=64, help="anchor groups in a run (default 64)")
    parser.add_argument("--runs", type=int, default=1000, help="runs of each kind (default 1000)")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    print("| members | scores | guesses | shown | z of 3 | not blind | z of 2.33 |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    for size, scores, guesses in product(map(int, options.sizes.split(",")), KINDS, KINDS):
        runs = (looks(rng, size, KINDS[scores], KINDS[guesses], options.groups) for _ in range(options.runs))
        shares = " | ".join(f"{share:.1f}" for share in 100 * np.mean(list(runs), axis=0))
        print(f"| {size} | {scores} | {guesses} | {shares} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
