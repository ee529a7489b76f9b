import math
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import bundled_names, load_competition
from wmrl_envs.autoresearch.grading import grade

from .folders import IDS, submission, write_folder


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """Answers 1 to 6, RMSE, board 1, 2, 4."""
    return load_competition(write_folder(tmp_path_factory.mktemp("regression") / "small"))


@pytest.fixture(scope="module")
def chances(tmp_path_factory):
    """Answers 0, 0, 1 in each half, Brier score."""
    root = tmp_path_factory.mktemp("chances") / "small"
    return load_competition(write_folder(root, metric="brier", answers=[0, 0, 1] * 2, board=(0.1, 0.2)))


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Labels that are texts, one of them looking like a missing value; ids that are texts, too."""
    root = tmp_path_factory.mktemp("colours") / "small"
    ids = ["a", "b", "NA", "07", "7", "x y"]
    answers = ["red", "NA", "blue", "red", "red", "NA"]
    return load_competition(
        write_folder(root, metric="accuracy", answers=answers, ids=ids, board=(1.0, 0.5, 0.0))
    )


def refusal(competition, path):
    """Status and sentence of a grade without a score."""
    result = grade(competition, path)
    assert result.score is None
    assert result.percentile is None
    assert result.message.endswith(".")
    assert "\n" not in result.message
    assert len(result.message) < 600
    return result.status, result.message


def test_each_half_is_scored_on_its_own_rows(regression, tmp_path):
    path = submission(tmp_path / "s.csv", [1, 2, 6, 4, 5, 6])
    public, private = grade(regression, path), grade(regression, path, half="private")
    assert (public.status, public.score) == ("ok", pytest.approx(math.sqrt(3)))
    assert public.percentile == pytest.approx(2 / 3)  # better than 2 and 4, worse than 1
    assert (private.score, private.percentile) == (0.0, 1.0)
    assert public.message == private.message == ""


@settings(max_examples=25)
@given(st.permutations(range(6)))
def test_order_of_rows_does_not_matter(regression, tmp_path_factory, order):
    predictions = [1.5, 2, 3, 4, 5, 9]
    path = tmp_path_factory.getbasetemp() / "shuffled.csv"
    submission(path, [predictions[place] for place in order], ids=[IDS[place] for place in order])
    assert grade(regression, path).score == pytest.approx(math.sqrt(0.25 / 3))
    assert grade(regression, path, "private").score == pytest.approx(math.sqrt(9 / 3))


def test_order_of_columns_does_not_matter(regression, tmp_path):
    pd.DataFrame({"y": [1, 2, 3, 4, 5, 6], "id": IDS}).to_csv(tmp_path / "s.csv", index=False)
    assert grade(regression, tmp_path / "s.csv").score == 0.0


@pytest.mark.parametrize(
    "ids", [[f"{row}.0" for row in IDS], [f" {row}" for row in IDS], [f"0{row}" for row in IDS]]
)
def test_ids_that_are_numbers_are_compared_as_numbers(regression, tmp_path, ids):
    assert grade(regression, submission(tmp_path / "s.csv", [1, 2, 3, 4, 5, 6], ids=ids)).score == 0.0


def test_ids_and_labels_that_are_texts_are_compared_as_texts(colours, tmp_path):
    path = submission(
        tmp_path / "s.csv",
        ["NA", " red", "red", "red", "NA", "blue"],
        ids=["x y", "7", "07 ", "a", "b", "NA"],
    )
    assert grade(colours, path).score == grade(colours, path, "private").score == 1.0


def test_perfect_and_sample_submissions_of_bundled_competitions(tmp_path):
    for name in bundled_names():
        competition = load_competition(name)
        path = tmp_path / f"{name}.csv"
        competition.answers().drop(columns="half").sample(frac=1, random_state=0).to_csv(path, index=False)
        best = 1.0 if competition.metric.higher_is_better else 0.0
        assert grade(competition, path).score == pytest.approx(best, abs=1e-9)
        assert grade(competition, path).percentile == 1.0
        assert grade(competition, competition.public_dir / "sample_submission.csv").status == "ok"


@pytest.mark.parametrize("path", [None, "nowhere.csv", "."])
def test_no_submission(regression, path):
    assert refusal(regression, path) == ("no_submission", "No file was written to SUBMISSION_PATH.")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"  \n\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (pickle.dumps({"id": 1}), "binary"),
        ("id,y\n11,1\n".encode("utf-16"), "binary"),
        (b"PK\x03\x04\x00", "binary"),
        (b"\x80\x81\x82", "no UTF-8 text: see byte 0"),
        ("id,y\n11,Größe\n".encode("latin-1"), "no UTF-8 text: see byte 10"),
        (b'id,y\n11,"1\n12,2\n', "EOF inside string"),
        (b"id,y\n11,1\n12,2,3\n", "Expected 2 fields in line 3, saw 3"),
        (b"id,y\n11,1,5\n12,2,5\n", "first row has 3 fields, but there are 2 columns"),
        (b'id,y\n"' + b"x" * 200_000 + b'",1\n', "field larger than field limit"),
    ],
)
def test_unreadable(regression, tmp_path, data, why):
    (tmp_path / "s.csv").write_bytes(data)
    status, message = refusal(regression, tmp_path / "s.csv")
    assert status == "unreadable"
    assert why in message


def test_a_huge_file_is_not_read(regression, tmp_path):
    with (tmp_path / "s.csv").open("wb") as file:
        file.write(b"id,y\n")
        file.truncate(1 << 40)  # a terabyte, sparse
    status, message = refusal(regression, tmp_path / "s.csv")
    assert status == "unreadable"
    assert "longer than" in message


@pytest.mark.parametrize(
    "data",
    [b"id,y" + b",z" * 500_000 + b"\n", b"id,y\n1" + b",2" * 500_000 + b"\n", b"id,y\n" + b"1,2\n" * 250_000],
    ids=["columns", "fields", "rows"],
)
def test_csv_bombs_end_quickly(regression, tmp_path, data):
    (tmp_path / "s.csv").write_bytes(data)
    status, _ = refusal(regression, tmp_path / "s.csv")
    assert status in ("bad_columns", "unreadable", "bad_ids")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("id,z", "'id', 'z'"),
        ("ID,y", "'ID', 'y'"),
        ("id;y", "'id;y'"),
        ("id, y", "'id', ' y'"),
        ("id", "'id'"),
    ],
)
def test_bad_columns(regression, tmp_path, header, found):
    status, message = refusal(regression, submission(tmp_path / "s.csv", [1] * 6, header=header))
    assert status == "bad_columns"
    assert message == f"The submission must have the columns 'id', 'y'; it has {found}."


@pytest.mark.parametrize("header", ["id,y,y", ",id,y", "id,y,half"])
def test_surplus_columns_are_refused(regression, tmp_path, header):
    (tmp_path / "s.csv").write_text(header + "\n" + "".join(f"{row},1,1\n" for row in IDS))
    assert refusal(regression, tmp_path / "s.csv")[0] == "bad_columns"


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (IDS[:4], "2 ids are missing, first '15'."),
        ([], "6 ids are missing, first '11'."),
        ([*IDS, 99], "1 id is not in the test set, first '99'."),
        ([*IDS[:5], "x"], "1 id is not in the test set, first 'x'."),
        ([*IDS[:5], ""], "1 id is not in the test set, first ''."),
        ([*IDS[:5], "16.5"], "1 id is not in the test set, first '16.5'."),
        ([*IDS[:5], "1" * 400], "1 id is not in the test set, first '" + "1" * 60 + "...'."),
        ([*IDS, 12, 13], "2 ids are repeated, first '12'."),
        ([11, *IDS[:5]], "1 id is repeated, first '11'."),
    ],
)
def test_bad_ids(regression, tmp_path, ids, why):
    path = submission(tmp_path / "s.csv", [1] * len(ids), ids=ids)
    assert refusal(regression, path) == ("bad_ids", why)


def test_rows_of_the_other_half_are_checked_too(regression, tmp_path):
    assert refusal(regression, submission(tmp_path / "s.csv", [1] * 3, ids=IDS[:3]))[0] == "bad_ids"
    assert refusal(regression, submission(tmp_path / "t.csv", [1, 2, 3, 4, 5, "nan"]))[0] == "bad_values"


@pytest.mark.parametrize(
    "value", ["nan", "NaN", "", "inf", "-inf", "1e999", "one", "True", "0x10", "1_0", "None", "1;2"]
)
def test_predictions_must_be_finite_numbers(regression, tmp_path, value):
    status, message = refusal(regression, submission(tmp_path / "s.csv", [1, 2, value, 4, value, 6]))
    assert status == "bad_values"
    assert message.startswith("y must be a finite number; 2 rows are not, first ")
    assert message.endswith(" for id 13.")


@pytest.mark.parametrize("value", ["1.0000001", "-0.1", "nan", "yes"])
def test_probabilities_must_lie_in_the_unit_interval(chances, tmp_path, value):
    status, message = refusal(chances, submission(tmp_path / "s.csv", [0, 0, 1, 0, value, 1]))
    assert status == "bad_values"
    assert "y must be a probability between 0 and 1; 1 row is not" in message
    assert grade(chances, submission(tmp_path / "s.csv", [0, 0, 1, 0, 0.5, 1])).score == 0.0


def test_a_ranking_metric_takes_any_finite_score(tmp_path):
    root = write_folder(tmp_path / "small", metric="roc_auc", answers=[0, 0, 1] * 2, board=(0.9, 0.5))
    path = submission(tmp_path / "s.csv", [-3, 0, 250, 1, 2, 3])
    assert grade(load_competition(root), path).score == 1.0


@pytest.mark.parametrize("value", ["green", "RED", "", "nan"])
def test_labels_must_be_those_of_the_training_rows(colours, tmp_path, value):
    path = submission(tmp_path / "s.csv", ["red"] * 5 + [value], ids=["a", "b", "NA", "07", "7", "x y"])
    assert refusal(colours, path) == (
        "bad_values",
        f"y must be one of 'red', 'NA', 'blue'; 1 row is not, first '{value}' for id x y.",
    )


def test_a_probability_is_no_label(tmp_path):
    competition = load_competition(write_folder(tmp_path / "small", metric="f1", answers=[0, 0, 1] * 2))
    status, message = refusal(competition, submission(tmp_path / "s.csv", [0, 0, 0.9, 0, 0, 1.0]))
    assert status == "bad_values"
    assert "one of '0', '1'; 1 row is not, first '0.9'" in message
    assert grade(competition, submission(tmp_path / "s.csv", [0.0, 0.0, 1.0, 0, 0, "1.0"])).score == 1.0


def test_a_metric_that_overflows_is_a_status(regression, tmp_path):
    path = submission(tmp_path / "s.csv", [1e308] * 6)
    assert refusal(regression, path) == (
        "metric_error",
        "rmse is inf for this submission, which cannot be ranked.",
    )


def test_a_metric_that_raises_is_a_status(regression, tmp_path, monkeypatch):
    def broken(answers, predictions):
        raise ZeroDivisionError("division by zero\nsecond line")

    monkeypatch.setattr(type(regression.metric), "__call__", lambda self, a, p: broken(a, p))
    path = submission(tmp_path / "s.csv", [1] * 6)
    assert refusal(regression, path) == ("metric_error", "rmse failed: division by zero.")


def test_nothing_beside_the_submission_counts(regression, tmp_path):
    for name in ("grade.json", "reward.txt", "answers.csv", "s.csv.gz"):
        (tmp_path / name).write_text('{"score": 1.0}')
    path = submission(tmp_path / "s.csv", [3, 2, 1, 4, 5, 6])
    assert grade(regression, path).score == pytest.approx(math.sqrt(8 / 3))


@settings(max_examples=150)
@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_no_bytes_raise(chances, tmp_path_factory, noise, start, length):
    path = tmp_path_factory.getbasetemp() / "noise.csv"
    good = submission(path, [0.25, 0, 1, 0, 0, 1]).read_bytes()
    path.write_bytes(good[:start] + noise + good[start + length :])
    result = grade(chances, path)
    assert (result.status == "ok") == (result.score is not None)


@settings(max_examples=100)
@given(st.lists(st.text("id,y\n\r\"'019.-e \ufeff;#x\t", max_size=6), max_size=30).map("".join))
def test_no_text_raises(chances, tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "noise.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert grade(chances, path).status in ("unreadable", "bad_columns", "bad_ids", "bad_values")


def test_several_targets(tmp_path):
    root = write_folder(tmp_path / "small", metric="mae")
    for file in ("public/train.csv", "public/sample_submission.csv", "private/answers.csv"):
        table = pd.read_csv(root / file)
        table.assign(z=-table["y"]).to_csv(root / file, index=False)
    settings = root / "competition.yaml"
    settings.write_text(settings.read_text().replace("- y", "- y\n- z"))
    table = pd.DataFrame({"id": IDS, "z": [-1, -2, 0, -4, -5, -6], "y": [1, 2, 3, 4, 5, 6]})
    table.sample(frac=1, random_state=1).to_csv(tmp_path / "s.csv", index=False)
    competition = load_competition(root)
    assert grade(competition, tmp_path / "s.csv").score == pytest.approx((0 + 1) / 2)
    assert grade(competition, tmp_path / "s.csv", "private").score == 0.0


def test_numbers_survive_to_the_last_digit(regression, tmp_path):
    value = np.nextafter(3.0, 4.0)
    score = grade(regression, submission(tmp_path / "s.csv", [1, 2, repr(float(value)), 4, 5, 6])).score
    assert score == pytest.approx((value - 3.0) / math.sqrt(3))
