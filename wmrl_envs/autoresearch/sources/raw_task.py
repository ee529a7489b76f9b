"""From a data set to a competition's folder: `RawTask` and `write_competition`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from wmrl_envs.autoresearch.metrics import get_metric

__all__ = ["MIT", "RawTask", "write_competition"]

MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


@dataclass(frozen=True)
class RawTask:
    """A data set on its way to becoming a competition.

    Attributes:
        settings: What goes to competition.yaml, without the columns.
        description: Text of description.md.
        table: Features and target, one row an example.
        target: Name of the target column.
        images: Images of shape (rows, height, width), for image tasks.
        test_fraction: Share of the rows that become test rows.
        notice: What the licence asks to be kept with the data; goes to NOTICE.txt.
    """

    settings: dict[str, str]
    description: str
    table: pd.DataFrame
    target: str
    images: NDArray[np.uint8] | None = None
    test_fraction: float = 0.5
    notice: str = ""


def write_competition(task: RawTask, root: Path, seed: int = 0) -> None:
    """Split a data set into train, public test and private test rows and write the competition's folder.

    Rows are shuffled and numbered anew, so neither the order nor the id tells anything. The leaderboards have
    a single entry, the sample submission, until the panel makes them.
    """
    order = np.random.default_rng(seed).permutation(len(task.table))
    table = task.table.iloc[order].reset_index(drop=True)
    table.insert(0, "id", np.arange(1, len(table) + 1))
    num_test = round(len(table) * task.test_fraction)
    test, train = table.iloc[:num_test], table.iloc[num_test:]

    public, private = root / "public", root / "private"
    public.mkdir(parents=True, exist_ok=True)
    private.mkdir(exist_ok=True)
    train.to_csv(public / "train.csv", index=False)
    test.drop(columns=task.target).to_csv(public / "test.csv", index=False)
    sample = test[["id"]].assign(**{task.target: train[task.target].mode()[0]})
    sample.to_csv(public / "sample_submission.csv", index=False)
    halves = np.where(np.arange(num_test) < num_test // 2, "public", "private")
    answers = test[["id", task.target]].assign(half=halves)
    answers.to_csv(private / "answers.csv", index=False)
    metric = get_metric(task.settings["metric"])
    for half in ("public", "private"):
        rows = halves == half
        score = metric(answers[task.target].to_numpy()[rows], sample[task.target].to_numpy()[rows])
        board = pd.DataFrame({"rank": [1], "score": [score]})
        board.to_csv(private / f"{half}_leaderboard.csv", index=False)
    if task.images is not None:
        images = task.images[order]
        np.savez_compressed(public / "images.npz", train=images[num_test:], test=images[:num_test])
    (public / "description.md").write_text(task.description.strip() + "\n", encoding="utf-8")
    if task.notice:
        (root / "NOTICE.txt").write_text(task.notice, encoding="utf-8")
    settings = {**task.settings, "id_column": "id", "target_columns": [task.target]}
    (root / "competition.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
