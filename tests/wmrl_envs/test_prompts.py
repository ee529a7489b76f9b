from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import load_competition
from wmrl_envs.autoresearch.prompts import AGENT_SYSTEM_PROMPT, cut_middle, outcome_text, task_text
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
