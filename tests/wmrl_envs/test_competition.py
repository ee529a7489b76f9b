import pickle
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from wmrl_envs.autoresearch.checks import check_competition
from wmrl_envs.autoresearch.competition import (
    bundled_names,
    competition_names,
    load_competition,
    open_competition,
)
from wmrl_envs.errors import CompetitionError

from .folders import IDS, write_folder


def edit(path, change):
    """Change a table on disk."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    change(table).to_csv(path, index=False)


def put(column, row, value):
    """A change of one cell."""

    def change(table):
        table.loc[row, column] = value
        return table

    return change


def sentence(root):
    """What loading a folder says."""
    with pytest.raises(CompetitionError) as caught:
        load_competition(root)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_competitions_are_sound(name):
    competition = load_competition(name)
    assert competition.name == name
    assert check_competition(competition) == []
    answers = competition.answers()
    assert len(competition.answers("public")) + len(competition.answers("private")) == len(answers)
    settings = (competition.root / "competition.yaml").read_text()
    assert "licence:" in settings
    assert "source:" in settings


def test_a_folder_is_read_as_it_is(tmp_path):
    root = write_folder(tmp_path / "small")
    competition = load_competition(root)
    assert (competition.name, competition.id_column, competition.target_columns) == ("small", "id", ("y",))
    assert competition.answers("private")["y"].tolist() == [4, 5, 6]
    assert competition.answers()["id"].tolist() == [str(row) for row in IDS]
    assert competition.leaderboard("public") == (1.0, 2.0, 4.0)
    assert load_competition("small", tmp_path) == competition == pickle.loads(pickle.dumps(competition))
    assert competition_names(tmp_path) == competition_names(tmp_path, "train") == ["small"]


def test_boards_are_best_first_with_nan_last(tmp_path):
    lower = write_folder(tmp_path / "lower", board=(4.0, "", 1.0))
    higher = write_folder(tmp_path / "higher", metric="r2", board=(4.0, "n/a", 9.0))
    assert str(load_competition(lower).leaderboard("private")) == "(1.0, 4.0, nan)"
    assert str(load_competition(higher).leaderboard("private")) == "(9.0, 4.0, nan)"


def test_what_a_caller_does_to_a_table_stays_with_him(tmp_path):
    competition = load_competition(write_folder(tmp_path / "small"))
    mine = competition.answers()
    mine["y"] = 0
    assert competition.answers()["y"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_changed_folder_is_read_again(tmp_path):
    root = write_folder(tmp_path / "small")
    before = load_competition(root)
    before.leaderboard("public")
    edit(root / "private/public_leaderboard.csv", put("score", 0, "0.125"))
    after = load_competition(root)
    assert after.leaderboard("public")[0] == 0.125
    assert after != before


def test_labels_that_look_like_missing_values_are_labels(tmp_path):
    root = write_folder(tmp_path / "small", metric="accuracy", answers=["NA", "None", "x", "NA", "None", "x"])
    assert load_competition(root).answers()["y"].tolist() == ["NA", "None", "x"] * 2


def test_whole_labels_are_numbers(tmp_path):
    root = write_folder(
        tmp_path / "small", metric="accuracy", answers=[1, 2, 1, 2, 1, 2], labels=["1.0", "2.0", ""]
    )
    assert load_competition(root).answers()["y"].tolist() == [1, 2, 1, 2, 1, 2]


def test_loading_from_many_threads():
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(load_competition, bundled_names() * 8))
    assert {competition.name for competition in loaded} == set(bundled_names())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("brest-cancer", "Did you mean 'breast-cancer'?"),
        ("sms_spam", "Did you mean 'sms-spam'?"),
        ("titanic", "Choose one of bike-hours, breast-cancer"),
        ("", "Choose one of"),
        ("../digits", "Did you mean 'digits'?"),
        ("x\0y", "Choose one of"),
        ("x" * 10_000, "Choose one of"),
    ],
)
def test_an_unknown_name_is_told_what_is_near(name, hint):
    text = sentence(name)
    assert text.startswith("Unknown competition")
    assert hint in text
    assert len(text) < 500


def test_unknown_places(tmp_path):
    with pytest.raises(CompetitionError, match=r"There are no competitions in"):
        load_competition("titanic", tmp_path)
    with pytest.raises(CompetitionError, match=r"data root .* is not a folder"):
        load_competition("titanic", tmp_path / "nowhere")
    assert "it has no competition.yaml" in sentence(tmp_path)


CORRUPTIONS = {
    "answers missing": (
        lambda r: (r / "private/answers.csv").unlink(),
        "incomplete: add private/answers.csv",
    ),
    "no description": (lambda r: (r / "public/description.md").write_text(" \n"), "description.md is empty"),
    "latin-1 description": (
        lambda r: (r / "public/description.md").write_bytes("Größe".encode("latin-1")),
        "description.md cannot be read as UTF-8 text",
    ),
    "settings are no YAML": (lambda r: (r / "competition.yaml").write_text("a: [b"), "is not valid YAML"),
    "settings are a list": (lambda r: (r / "competition.yaml").write_text("- a"), "must hold settings"),
    "settings lack a key": (lambda r: replace(r, "metric: rmse\n", ""), "lacks metric"),
    "unknown category": (
        lambda r: replace(r, "tabular", "sound"),
        "category must be one of tabular, text, image",
    ),
    "category is a list": (lambda r: replace(r, "tabular", "[tabular]"), "category must be one of"),
    "unknown split": (
        lambda r: replace(r, "title", "split: test\ntitle"),
        "split must be one of train, heldout",
    ),
    "unknown metric": (lambda r: replace(r, "rmse", "rsme"), "Unknown metric 'rsme'"),
    "targets are no list": (lambda r: replace(r, "\n- y", " y"), "target_columns must be a list"),
    "id is a target": (lambda r: replace(r, "- y", "- id"), "cannot be a target too"),
    "target not in train": (
        lambda r: edit(r / "public/train.csv", lambda t: t.drop(columns="y")),
        "train.csv lacks the target column 'y'",
    ),
    "target in test": (
        lambda r: edit(r / "public/test.csv", lambda t: t.assign(y=1)),
        "test.csv holds the target column 'y', which gives the answers away",
    ),
    "test without ids": (
        lambda r: edit(r / "public/test.csv", lambda t: t.drop(columns="id")),
        "test.csv lacks the id column 'id'",
    ),
    "sample with another column": (
        lambda r: edit(r / "public/sample_submission.csv", lambda t: t.rename(columns={"y": "z"})),
        "sample_submission.csv has the columns id, z, expected id, y",
    ),
    "answers without half": (
        lambda r: edit(r / "private/answers.csv", lambda t: t.drop(columns="half")),
        "answers.csv has the columns id, y, expected id, y, half",
    ),
    "answer is NaN": (
        lambda r: edit(r / "private/answers.csv", put("y", 2, "nan")),
        "answers.csv has y = 'nan' for the id '13': no finite number",
    ),
    "answer is empty": (
        lambda r: edit(r / "private/answers.csv", put("y", 2, "")),
        "answers.csv has y = '' for the id '13': no finite number",
    ),
    "answer is infinite": (
        lambda r: edit(r / "private/answers.csv", put("y", 2, "-inf")),
        "y = '-inf' for the id '13'",
    ),
    "unknown half": (
        lambda r: edit(r / "private/answers.csv", put("half", 0, "train")),
        "answers.csv has the half 'train': it must be 'public' or 'private'",
    ),
    "only one half": (
        lambda r: edit(r / "private/answers.csv", lambda t: t.assign(half="public")),
        "answers.csv has no row in the private half",
    ),
    "answers repeat an id": (
        lambda r: edit(r / "private/answers.csv", put("id", 1, "11")),
        "answers.csv has the id '11' more than once",
    ),
    "answer without id": (
        lambda r: edit(r / "private/answers.csv", put("id", 1, "")),
        "answers.csv has a row without an id",
    ),
    "no answers": (
        lambda r: edit(r / "private/answers.csv", lambda t: t[:0]),
        "answers.csv has no row in the public half",
    ),
    "sample lacks an id": (
        lambda r: edit(r / "public/sample_submission.csv", lambda t: t[1:]),
        "sample_submission.csv lacks the id '11' of the answers",
    ),
    "sample has another id": (
        lambda r: edit(r / "public/sample_submission.csv", put("id", 0, "99")),
        "sample_submission.csv has the id '99', which is not among the answers",
    ),
    "sample repeats an id": (
        lambda r: edit(r / "public/sample_submission.csv", put("id", 0, "12")),
        "sample_submission.csv has the id '12' more than once",
    ),
    "board without entries": (
        lambda r: edit(r / "private/public_leaderboard.csv", lambda t: t[:0]),
        "public_leaderboard.csv has no entries",
    ),
    "board without numbers": (
        lambda r: edit(r / "private/private_leaderboard.csv", lambda t: t.assign(score="?")),
        "private_leaderboard.csv has no finite score",
    ),
    "board without scores": (
        lambda r: edit(r / "private/private_leaderboard.csv", lambda t: t.drop(columns="score")),
        "private_leaderboard.csv has no column 'score'",
    ),
    "table in latin-1": (
        lambda r: (r / "public/train.csv").write_bytes("id,Größe\n1,2\n".encode("latin-1")),
        "train.csv cannot be read as a CSV table",
    ),
    "answers in latin-1": (
        lambda r: (r / "private/answers.csv").write_bytes("id,y,half\n11,Größe,public\n".encode("latin-1")),
        "answers.csv cannot be read as a CSV table",
    ),
    "empty table": (
        lambda r: (r / "public/test.csv").write_text(""),
        "test.csv cannot be read as a CSV table",
    ),
    "ragged table": (
        lambda r: (r / "private/answers.csv").write_text("id,y,half\n11,1,public\n12,1,private,x\n"),
        "answers.csv cannot be read as a CSV table",
    ),
}


def replace(root, old, new):
    path = root / "competition.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(("corrupt", "expected"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_each_corruption_has_its_own_sentence(tmp_path, corrupt, expected):
    root = write_folder(tmp_path / "small")
    corrupt(root)
    assert expected in sentence(root)


@pytest.mark.parametrize(
    ("metric", "answers", "expected"),
    [
        ("accuracy", ["a", "b", "c", "a", "b", "d"], "answers.csv has y = 'd', which no training row has"),
        ("quadratic_kappa", ["a", "b", "c", "a", "b", "c"], "y = 'a' for the id '11': no finite number"),
        ("roc_auc", [0, 1, 0, 1, 1, 1], "y = 1 in the private half, roc_auc needs 0 and 1"),
        ("log_loss", [1, 2, 1, 2, 1, 2], "y = 1, 2 in the public half, log_loss needs 0 and 1"),
        ("rmse", ["a", "b", "c", "a", "b", "c"], "no finite number"),
        ("rmsle", [1, 2, -3, 4, 5, 6], "negative values of y, which rmsle does not take"),
    ],
)
def test_answers_must_fit_the_metric(tmp_path, metric, answers, expected):
    root = write_folder(
        tmp_path / "small", metric=metric, answers=answers, labels=["a", "b", "c"] if "d" in answers else None
    )
    assert expected in sentence(root)


def test_all_findings_are_reported(tmp_path):
    root = write_folder(tmp_path / "small")
    edit(root / "private/answers.csv", put("y", 0, "nan"))
    edit(root / "private/public_leaderboard.csv", lambda t: t[:0])
    findings = check_competition(open_competition(root))
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("error", "private/answers.csv"),
        ("error", "private/public_leaderboard.csv"),
    ]
    assert str(findings[1]) == "private/public_leaderboard.csv has no entries."
