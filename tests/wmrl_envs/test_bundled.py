"""The suite that comes with the package: small, sound, listed, and with boards that tell scripts apart."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from wmrl_envs.autoresearch.checks import check_competition
from wmrl_envs.autoresearch.competition import (
    BUNDLED,
    CATEGORIES,
    bundled_names,
    competition_names,
    load_competition,
)
from wmrl_envs.autoresearch.panel import panel_scripts
from wmrl_envs.autoresearch.sources.bundled import TASKS

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
NAMES = bundled_names()


def licence(name):
    return yaml.safe_load((BUNDLED / name / "competition.yaml").read_text())["licence"]


def tables(competition):
    """Train and test rows."""
    return [pd.read_csv(competition.public_dir / f"{name}.csv") for name in ("train", "test")]


def features(competition):
    """Keys of the train rows and of the test rows: equal keys are equal features."""
    if competition.category == "image":
        images = np.load(competition.public_dir / "images.npz")
        return [[image.tobytes() for image in images[half]] for half in ("train", "test")]
    train, test = tables(competition)
    columns = test.columns.drop("id")
    return [list(table[columns].itertuples(index=False, name=None)) for table in (train, test)]


def test_nine_to_train_on_and_three_held_out():
    assert set(NAMES) == set(TASKS)
    for split, each in (("train", 3), ("heldout", 1)):
        competitions = [load_competition(name) for name in competition_names(split=split)]
        assert Counter(c.category for c in competitions) == dict.fromkeys(CATEGORIES, each)


def test_the_metrics_are_of_every_kind():
    metrics = [load_competition(name).metric for name in NAMES]
    assert len({metric.name for metric in metrics}) >= 10
    assert {metric.higher_is_better for metric in metrics} == {True, False}
    assert {metric.prediction for metric in metrics} == {"number", "label", "probability"}


def test_what_a_licence_asks_to_be_kept_is_there():
    asking = {name for name in NAMES if licence(name) in ("MIT", "WordNet 3.0")}
    assert asking == {path.parent.name for path in BUNDLED.glob("*/NOTICE.txt")}


def test_the_suite_is_small():
    assert sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file()) < 12e6


@pytest.mark.parametrize("name", NAMES)
def test_tables_fit_each_other(name):
    competition = load_competition(name)
    assert check_competition(competition) == []
    train, test = tables(competition)
    assert 200 < len(train) <= 3000
    assert 300 < len(test) <= 3000
    assert train.columns.drop(list(competition.target_columns)).tolist() == test.columns.tolist()
    assert not train.isna().any(axis=None)
    assert not test.isna().any(axis=None)
    halves = competition.answers()["half"].value_counts()
    assert abs(halves["public"] - halves["private"]) <= 1
    assert halves.sum() == len(test)


@pytest.mark.parametrize("name", NAMES)
def test_no_test_row_stands_among_the_train_rows(name):
    train, test = features(load_competition(name))
    assert set(train).isdisjoint(test)
    assert len(set(test)) == len(test)


@pytest.mark.parametrize("name", NAMES)
def test_no_feature_alone_gives_the_answers_away(name):
    competition = load_competition(name)
    if competition.category == "image":
        columns = np.load(competition.public_dir / "images.npz")["train"]
        columns = columns.reshape(len(columns), -1).T
    elif competition.category == "text":
        columns = [tables(competition)[0]["text"].str.len()]
    else:
        train, test = tables(competition)
        columns = train[test.columns.drop("id")].to_numpy().T
    answers = tables(competition)[0][competition.target_columns[0]]
    for column in columns:
        if np.ptp(column) == 0:
            continue
        if competition.metric.prediction == "number":
            assert abs(spearmanr(column, answers).statistic) < 0.9
        for label in () if competition.metric.prediction == "number" else answers.unique():
            assert 0.02 < roc_auc_score(answers == label, column) < 0.98


@pytest.mark.parametrize("name", NAMES)
def test_ids_tell_nothing(name):
    competition = load_competition(name)
    train, test = tables(competition)
    answers = train[competition.target_columns[0]]
    assert abs(spearmanr(train["id"], answers).statistic) < 0.15
    assert set(train["id"]).isdisjoint(test["id"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("half", ["public", "private"])
def test_boards_tell_scripts_apart(name, half):
    competition = load_competition(name)
    board = pd.read_csv(competition.private_dir / f"{half}_leaderboard.csv")
    assert board["rank"].tolist() == list(range(1, len(board) + 1))
    assert 100 <= len(board) <= len(panel_scripts(competition))
    assert board["score"].nunique() > 20
    steps = board["score"].diff().dropna()
    assert ((steps <= 0) if competition.metric.higher_is_better else (steps >= 0)).all()
    low, high = competition.metric.bounds
    assert board["score"].between(low, high).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_panel_is_of_different_scripts(name):
    scripts = panel_scripts(load_competition(name))
    assert len(set(scripts)) == len(scripts) >= 100


@pytest.mark.parametrize("name", NAMES)
def test_the_page_on_the_data_lists_it(name):
    competition = load_competition(name)
    train, test = tables(competition)
    rows = re.findall(rf"^\| {re.escape(name)} \|.*$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 2
    split = {"train": "train", "heldout": "held out"}[competition.split]
    for part in (f"| {competition.category} | {split} |", f"{len(train):,} / {len(test):,}"):
        assert part in rows[0]
    assert f"`{competition.metric.name}`, {competition.metric.direction}" in rows[0]
