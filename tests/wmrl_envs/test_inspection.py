import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import bundled_names, load_competition
from wmrl_envs.autoresearch.inspection import inspect_competition, inspect_folder
from wmrl_envs.autoresearch.leaks import gives_away

from .test_competition import edit, put

ROWS = 40


def write_large(root, *, metric="roc_auc", board=(0.9, 0.8, 0.7)):
    """A sound competition of 40 test rows: in six, anything can be chance."""
    rng = np.random.default_rng(5)
    public, private = root / "public", root / "private"
    public.mkdir(parents=True)
    private.mkdir()
    ids = np.arange(100, 100 + ROWS)
    answers = rng.permutation([0, 1] * (ROWS // 2))
    train = {"id": range(ROWS), "x": rng.random(ROWS), "y": rng.permutation(answers)}
    pd.DataFrame(train).to_csv(public / "train.csv", index=False)
    pd.DataFrame({"id": ids, "x": rng.random(ROWS)}).to_csv(public / "test.csv", index=False)
    pd.DataFrame({"id": ids, "y": 0.5}).to_csv(public / "sample_submission.csv", index=False)
    halves = rng.permutation(["public", "private"] * (ROWS // 2))
    pd.DataFrame({"id": ids, "y": answers, "half": halves}).to_csv(private / "answers.csv", index=False)
    for half in ("public", "private"):
        pd.DataFrame({"rank": [1, 2, 3], "score": board}).to_csv(
            private / f"{half}_leaderboard.csv", index=False
        )
    (public / "description.md").write_text("Predict y from x.\n", encoding="utf-8")
    (root / "competition.yaml").write_text(
        f"title: Large\ncategory: tabular\nmetric: {metric}\nid_column: id\ntarget_columns: [y]\n"
    )
    return root


def answers_of(root):
    return pd.read_csv(root / "private/answers.csv")


def found(root):
    return [f"{finding.severity}: {finding}" for finding in inspect_folder(root)]


@pytest.mark.parametrize("name", bundled_names())
def test_nothing_is_found_in_the_bundled_competitions(name):
    assert inspect_competition(load_competition(name)) == []


def test_nothing_is_found_in_a_sound_folder(tmp_path):
    assert found(write_large(tmp_path / "large")) == []


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        (
            (0.7, 0.8, 0.9),
            "error: private/{}_leaderboard.csv is sorted worst first, since for roc_auc higher",
        ),
        ((0.8, 0.9, 0.7), "warning: private/{}_leaderboard.csv is not sorted best first"),
        ((0.8, 0.8, 0.8), "error: private/{}_leaderboard.csv has no score but 0.8"),
        ((87.5, 80, 70), "error: private/{}_leaderboard.csv has the score 87.5, which roc_auc cannot take"),
        ((0.9, 0.8, ""), "warning: private/{}_leaderboard.csv has 1 entries without a finite score"),
    ],
)
def test_boards(tmp_path, board, expected):
    lines = found(write_large(tmp_path / "large", board=board))
    assert len(lines) == 2
    for line, half in zip(lines, ("public", "private"), strict=True):
        assert line.startswith(expected.format(half))


def test_a_metric_of_the_wrong_direction_shows_in_the_board_and_the_sample(tmp_path):
    lines = found(write_large(tmp_path / "large", metric="log_loss", board=(0.9, 0.8, 0.7)))
    assert "error: private/public_leaderboard.csv is sorted worst first, since for log_loss lower" in lines[0]
    assert any(
        "sample_submission.csv reaches the percentile 1.00 on the public board" in line for line in lines
    )


def drop_first(table):
    return table.iloc[1:]


def repeat_first(table):
    return pd.concat([table, table.iloc[:1]])


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("public/test.csv", put("id", 3, "999"), "test.csv has the id '999', which is not among the answers"),
        ("public/test.csv", drop_first, "test.csv lacks the id '100', for which an answer is asked"),
        ("public/test.csv", repeat_first, "test.csv has the id '100' more than once"),
        ("public/train.csv", put("y", 0, ""), "train.csv has 1 rows without a value of y"),
        ("private/answers.csv", put("y", 0, "nan"), "answers.csv has y = 'nan' for the id '100': no finite"),
        ("public/sample_submission.csv", put("y", 0, "?"), "cannot be graded on the public half: "),
        ("public/sample_submission.csv", drop_first, "lacks the id '100' of the answers"),
    ],
)
def test_ids_and_values(tmp_path, file, change, expected):
    root = write_large(tmp_path / "large")
    edit(root / file, change)
    assert expected in found(root)[0]


def test_tables_that_forgot_the_test_rows(tmp_path):
    root = write_large(tmp_path / "large")
    side = root / "public/visits.csv"
    pd.DataFrame({"id": range(ROWS), "visits": 1}).to_csv(side, index=False)
    expected = (
        "public/visits.csv has the ids of all training rows, but lacks 40 of the 40 test rows, first '100'."
    )
    assert found(root) == [f"error: {expected}"]
    pd.DataFrame({"id": [*range(ROWS), *range(101, 140)], "visits": 1}).to_csv(side, index=False)
    assert found(root) == [f"warning: {expected.replace('40 of', '1 of')}"]
    pd.DataFrame({"id": [*range(ROWS), *range(100, 140)], "visits": 1}).to_csv(side, index=False)
    assert found(root) == []


def test_encodings(tmp_path):
    root = write_large(tmp_path / "large")
    (root / "public/places.csv").write_bytes("id,place\n1,Köln\n".encode("latin-1"))
    (root / "public/notes.txt").write_bytes("Köln".encode("latin-1"))
    lines = found(root)
    assert "error: public/places.csv is not UTF-8: line 2 holds other bytes. Save it as UTF-8." in lines
    assert "warning: public/notes.txt is not UTF-8: line 1 holds other bytes. Save it as UTF-8." in lines


def test_a_column_of_the_test_table_that_gives_the_answers_away(tmp_path):
    root = write_large(tmp_path / "large")
    answers = answers_of(root)["y"]
    edit(root / "public/test.csv", lambda table: table.assign(giver=answers.map({0: "N/A", 1: "someone"})))
    assert found(root) == [
        "error: public/test.csv gives the answers away: the column 'giver' tells y of the test rows."
    ]


def leak_order(root):
    order = np.argsort(answers_of(root)["y"].to_numpy(), kind="stable")
    edit(root / "public/test.csv", lambda table: table.iloc[order])


def leak_side_table(root):
    answers_of(root)[["id", "y"]].rename(columns={"y": "z"}).sample(frac=1, random_state=0).to_csv(
        root / "public/log.tsv", index=False, sep="\t"
    )


def leak_sample(root):
    answers_of(root)[["id", "y"]].to_csv(root / "public/sample_submission.csv", index=False)


def leak_array(root):
    np.savez(root / "public/extra.npz", labels=answers_of(root)[["y"]].to_numpy())


def leak_folders(root):
    for _, row in answers_of(root).iterrows():
        path = root / "public/images" / f"class{row['y']}" / f"{row['id']}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("leak", "expected"),
    [
        (leak_order, "public/test.csv gives the answers away: the order of the rows"),
        (leak_side_table, "public/log.tsv gives the answers away: the column 'z'"),
        (leak_sample, "public/sample_submission.csv gives the answers away: the column 'y'"),
        (leak_array, "public/extra.npz gives the answers away: the array 'labels'"),
        (leak_folders, "public gives the answers away: the name of each file's folder"),
    ],
)
def test_other_ways_of_giving_the_answers_away(tmp_path, leak, expected):
    root = write_large(tmp_path / "large")
    leak(root)
    assert any(line.startswith(f"error: {expected} tells y") for line in found(root)), found(root)


def test_what_cannot_be_read_is_a_finding(tmp_path):
    [finding] = inspect_folder(tmp_path)
    assert finding.severity == "error"
    assert "incomplete: add competition.yaml" in str(finding)
    root = write_large(tmp_path / "large")
    (root / "public/extra.npz").write_bytes(b"no archive")
    assert "error: public/extra.npz cannot be read as arrays" in found(root)[0]


NUMBERS = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=20, max_size=60, unique=True)


@given(NUMBERS)
def test_any_monotone_function_of_a_number_gives_it_away(numbers):
    answers = pd.Series(numbers)
    assert gives_away(np.cbrt(answers), answers)
    assert gives_away(-answers, answers)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_what_was_drawn_at_random_gives_nothing_away(seed, classes):
    rng = np.random.default_rng(seed)
    answers = pd.Series(rng.integers(classes, size=60))
    assert not gives_away(pd.Series(rng.random(60)), answers)
    assert not gives_away(pd.Series(rng.integers(classes, size=60)), answers)
    assert not gives_away(pd.Series([f"id{row}" for row in range(60)]), answers)
    assert gives_away(answers.map(lambda label: math.cos(label)), answers)


def test_chance_is_no_leak():
    assert not gives_away(pd.Series([1.0, 2, 3, 4]), pd.Series([0, 0, 1, 1]))
    assert not gives_away(pd.Series(range(1000)), pd.Series([0] * 999 + [1]))
    assert not gives_away(pd.Series([], dtype=float), pd.Series([], dtype=int))
    assert not gives_away(pd.Series(range(100)), pd.Series([7] * 100))
    tied = pd.Series([0.5] * 100)
    assert not gives_away(tied, pd.Series([0, 1] * 50))
