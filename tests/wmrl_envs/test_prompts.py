import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import load_competition
from wmrl_envs.autoresearch.prompts import (
    AGENT_SYSTEM_PROMPT,
    AGENT_SYSTEM_PROMPTS,
    EXAMPLE_PROGRAM,
    cut_middle,
    fit,
    outcome_text,
    submitted_text,
    task_text,
)
from wmrl_envs.evaluation import Evaluation, Grade, Outcome

from .folders import write_folder

DIGITS = load_competition("digits")


def test_the_task_says_all_that_an_agent_needs():
    assert task_text(DIGITS) == (
        "# Handwritten digits (image)\n"
        "Predict which digit (0 to 9) a grey image of 8 by 8 pixels shows.\n"
        "Metric: accuracy, higher is better. Submit the predicted label.\n"
        "Files in DATA_DIR:\n"
        "- images.npz\n"
        "- sample_submission.csv: id, digit\n"
        "- test.csv: id\n"
        "- train.csv: id, digit\n"
        "Write the submission to SUBMISSION_PATH."
    )
    assert "one complete program in a ```python block" in AGENT_SYSTEM_PROMPT


def test_many_columns_are_shortened():
    line = next(
        line for line in task_text(load_competition("breast-cancer")).splitlines() if "- train" in line
    )
    assert line == (
        "- train.csv: id, mean_radius, mean_texture, mean_perimeter, mean_area, ... 26 more, malignant"
    )


def test_a_changed_task_is_told_anew(tmp_path):
    root = write_folder(tmp_path / "small")
    assert "Predict y from x." in task_text(load_competition(root))
    (root / "public/description.md").write_text("Predict something else.")
    assert "Predict something else." in task_text(load_competition(root))


def test_outcomes_in_words():
    ok = Evaluation(Outcome("ok", stdout="hello\n"), Grade("ok", score=0.98765, percentile=0.5))
    assert outcome_text(ok, DIGITS) == "status: ok\naccuracy: 0.9877\npercentile: 0.50\nstdout:\nhello"
    refused = Evaluation(Outcome("ok"), Grade("bad_ids", message="2 ids are missing, first '5'."))
    assert outcome_text(refused, DIGITS) == "status: bad_ids\nmessage: 2 ids are missing, first '5'."
    crashed = Evaluation(Outcome("error", stdout=" ", stderr="Traceback\nNameError"))
    assert outcome_text(crashed, DIGITS) == "status: error\nstderr:\nTraceback\nNameError"
    assert outcome_text(Evaluation(None, error="No reply."), DIGITS) == "status: missing"


def test_long_output_keeps_its_ends():
    log = "begin " + "x" * 10_000 + " NameError: name 'n' is not defined"
    text = outcome_text(Evaluation(Outcome("error", stderr=log)), DIGITS, max_chars=300)
    assert "begin" in text
    assert text.endswith("NameError: name 'n' is not defined")
    assert len(text) < 400


@given(st.text(), st.integers(0, 40))
def test_cut_middle(text, max_chars):
    cut = cut_middle(text, max_chars)
    if len(text) <= max_chars:
        assert cut == text
    else:
        head, _, rest = cut.partition(f"\n[... {len(text) - max_chars} characters cut ...]\n")
        assert text.startswith(head)
        assert text.endswith(rest)
        assert len(head) + len(rest) == max_chars


@pytest.mark.parametrize(
    ("feedback_score", "expected"),
    [
        ("percentile+raw", "status: ok\naccuracy: 0.9000\npercentile: 0.25\nstdout:\nhello"),
        ("raw", "status: ok\naccuracy: 0.9000\nstdout:\nhello"),
        ("none", "status: ok\nstdout:\nhello"),
    ],
)
def test_what_is_told_of_the_score(feedback_score, expected):
    graded = Evaluation(Outcome("ok", stdout="hello"), Grade("ok", score=0.9, percentile=0.25))
    assert outcome_text(graded, DIGITS, feedback_score=feedback_score) == expected
    assert submitted_text(graded, DIGITS, feedback_score=feedback_score).endswith(expected)
    failed = Evaluation(Outcome("ok"), Grade("bad_ids", message="2 ids are missing."))
    assert outcome_text(failed, DIGITS, feedback_score=feedback_score).endswith("message: 2 ids are missing.")


def words(text):
    return len(text.split())


@given(st.text(max_size=600), st.integers(64, 400))
def test_a_text_is_cut_as_little_as_makes_it_fit(text, limit):
    cut = fit(text, limit)
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
    else:
        assert len(cut) >= limit - 3  # the note's number may grow or shrink by a digit
        assert text.startswith(cut.partition("\n[... ")[0])
    assert fit(text, None) == text


@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=300), st.integers(64, 100))
def test_texts_are_measured_as_the_caller_says(parts, limit):
    text = " ".join(parts)
    cut = fit(text, limit, words)
    assert words(cut) <= limit
    assert (cut == text) == (len(parts) <= limit)


def test_the_example_program_runs_and_is_shown_whole(tmp_path, monkeypatch):
    for name, rows in (
        ("train.csv", "id,area,rooms,price\n1,50,2,100\n2,80,3,160\n3,20,2,40\n"),
        ("test.csv", "id,area,rooms\n4,100,4\n"),
    ):
        (tmp_path / name).write_text(rows)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SUBMISSION_PATH", str(tmp_path / "submission.csv"))
    exec(compile(EXAMPLE_PROGRAM, "example", "exec"), {})
    assert pd.read_csv(tmp_path / "submission.csv").round(3).to_dict("list") == {"id": [4], "price": [200.0]}
    prompt = AGENT_SYSTEM_PROMPTS["with_example"]
    assert prompt.startswith(AGENT_SYSTEM_PROMPTS["default"])
    assert prompt.endswith(f"\n```python\n{EXAMPLE_PROGRAM}```")
