"""Small competitions for tests, sound until a test breaks them."""

from __future__ import annotations

import pandas as pd
import yaml

IDS = [11, 12, 13, 14, 15, 16]
HALVES = ["public"] * 3 + ["private"] * 3


def write_folder(
    root, *, metric="rmse", answers=(1, 2, 3, 4, 5, 6), labels=None, ids=IDS, board=(1.0, 2.0, 4.0)
):
    """Write a competition of six test rows, three in each half, and return its folder.

    Labels are the targets of the training rows; the answers themselves if None.
    """
    public, private = root / "public", root / "private"
    public.mkdir(parents=True)
    private.mkdir()
    labels = list(answers) if labels is None else list(labels)
    train = {"id": range(1, len(labels) + 1), "x": 0.5, "y": labels}
    pd.DataFrame(train).to_csv(public / "train.csv", index=False)
    pd.DataFrame({"id": ids, "x": 0.25}).to_csv(public / "test.csv", index=False)
    pd.DataFrame({"id": ids, "y": labels[0]}).to_csv(public / "sample_submission.csv", index=False)
    pd.DataFrame({"id": ids, "y": answers, "half": HALVES}).to_csv(private / "answers.csv", index=False)
    for half in ("public", "private"):
        rows = {"rank": range(1, len(board) + 1), "score": board}
        pd.DataFrame(rows).to_csv(private / f"{half}_leaderboard.csv", index=False)
    (public / "description.md").write_text("Predict y from x.\n", encoding="utf-8")
    settings = {
        "title": "Small",
        "category": "tabular",
        "metric": metric,
        "id_column": "id",
        "target_columns": ["y"],
    }
    (root / "competition.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return root


def submission(path, predictions, ids=IDS, header="id,y"):
    """Write a submission and return its path."""
    rows = [f"{row},{value}" for row, value in zip(ids, predictions, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


class Recorded:
    """An evaluator that gives the evaluations that it was made with, one after the other."""

    def __init__(self, *evaluations) -> None:
        self.evaluations = list(evaluations)
        self.seen = []

    def evaluate(self, solutions):
        self.seen += solutions
        return [self.evaluations.pop(0) for _ in solutions]
