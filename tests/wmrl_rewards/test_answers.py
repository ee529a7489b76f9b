"""Reading answers: any form, no guess."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wmrl_rewards.world_models.answers import Answer, UnreadableAnswerError, read_answer

SHARE = (0.0, 1.0)
POSITIVE = (0.0, float("inf"))


def read(text, name="roc_auc", bounds=SHARE):
    return read_answer(text, name, bounds)


@pytest.mark.parametrize(
    "text",
    [
        "status: ok\nroc_auc: 0.97",
        "Status: OK\nROC_AUC: 0.97",
        "STATUS = ok\nroc_auc = .97",
        "status: ok\nroc_auc: 97%",
        "status: ok\nroc_auc: 97 %",
        "status: ok\nroc_auc: 9.7e-1",
        "status: ok\nroc_auc: +0.970",
        "status: ok\nroc auc: 0.97",
        "status: ok\nROC-AUC score: 0.97",
        "**Status:** ok\n**ROC AUC:** 0.97",
        "**status**: `ok`\n**roc_auc**: `0.97`",
        "- status: ok\n- roc_auc: 0.97",
        "* Status: *ok*\n* roc_auc: *0.97*",
        "> status: ok\n> roc_auc: 0.97",
        "# status: success\n1. the roc_auc: 0.97",
        "```\nstatus: ok\nroc_auc: 0.97\n```",
        "```text\nstatus: ok\nroc_auc: 0.97\n```\n",
        "status: ok, roc_auc: 0.97",
        "status: ok\nroc_auc: 0.97\npercentile: 0.50\nstdout:\nstatus: error\nroc_auc: 0.1",
        "status: ok\nroc_auc: 0.97\nstdout: {'auc': 0.5}",
        'status: ok\nroc_auc: 0.97\nstdout:\n{"status": "error"}',
        '{"status": "ok", "roc_auc": 0.97}',
        'Here it is:\n```json\n{"Status": "ok", "metrics": {"ROC AUC": "0.97"}, "stderr": null}\n```',
        '{"stdout": "a\\nstatus: error\\nb", "status": "ok", "roc_auc": 0.97}',
        "<think>\nstatus: error\nroc_auc: 0.5\n</think>\nstatus: ok\nroc_auc: 0.97",
        "status: error? Let me see.</think>status: ok\nroc_auc: 0.97",
        "I think that the status is ok, and the ROC AUC is about 0.97.",
        "The program runs. Status: ok. The expected ROC AUC is 0.97, since forests do well.",
        "The predicted status: ok\nPredicted roc_auc ≈ 0.97",
        "status: ok\nroc_auc: 0.97\n\nIn short:\nstatus: ok\nroc_auc: 0.970",
    ],
)
def test_forms_of_one_answer(text):
    answer = read(text)
    assert (answer.status, answer.value) == ("ok", 0.97)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no status"),
        ("I cannot run programs.", "names no status"),
        ("roc_auc: 0.97", "names no status"),
        ("status: fine\nroc_auc: 0.97", "does not name one known status, but 'fine'"),
        ("status: not ok", "does not name one known status"),
        ("status: ok | error | timeout", "does not name one known status"),
        ("status: ok or error\nroc_auc: 0.97", "does not name one known status"),
        ("status: ok\nroc_auc: 0.97\nstatus: error", "does not name one known status"),
        ("status: infrastructure", "does not name one known status"),
        ("status: tokyo", "does not name one known status"),
        ("status: ok", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: high", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: nan", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: inf", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: <value>", "gives no value of roc_auc"),
        ("status: ok\naccuracy: 0.97", "gives no value of roc_auc"),
        ("status: ok\nscore: 0.97", "gives no value of roc_auc"),
        ("status: ok\ntraining roc_auc: 0.97", "gives no value of roc_auc"),
        ("status: ok\ncv_roc_auc: 0.97", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.96-0.98", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.96 – 0.98", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 96% to 98%", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.5% - 0.6%", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.97 ± 0.01", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.97 or 0.5", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 97/100", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0,97", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.9.7", "gives no value of roc_auc"),
        ("status: ok\nroc_auc: 0.97\nroc_auc: 0.98", "gives several values of roc_auc"),
        ("status: ok\nroc_auc: 97", "roc_auc = 97, which it cannot be"),
        ("status: ok\nroc_auc: -0.1", "roc_auc = -0.1, which it cannot be"),
        ("<think>status: ok\nroc_auc: 0.97", "still thinking"),
        ('{"status": "ok", "roc_auc": [0.97]}', "gives no value of roc_auc"),
        ('{"status": ["ok", "error"]}', "does not name one known status"),
        ('{"roc_auc": 0.97}', "names no status"),
    ],
)
def test_answers_that_leave_something_open_are_refused(text, problem):
    with pytest.raises(UnreadableAnswerError, match=problem):
        read(text)


@pytest.mark.parametrize(
    ("text", "name", "bounds", "value"),
    [
        ("status: ok\nrmse: 1234.5", "rmse", POSITIVE, 1234.5),
        ("status: ok\nrmse: 1,234.5", "rmse", POSITIVE, None),
        ("status: ok\nrmse: 1e400", "rmse", POSITIVE, None),
        ("status: ok\nrmse: 12%", "rmse", POSITIVE, None),
        ("status: ok\nrmsle: 0.5", "rmse", POSITIVE, None),
        ("status: ok\nr2: -3", "r2", (-float("inf"), 1.0), -3.0),
        ("status: ok\nbalanced accuracy: 0.5", "accuracy", SHARE, None),
        ("status: ok\nbalanced_accuracy: 0.5\naccuracy: 0.7", "accuracy", SHARE, 0.7),
        ("status: ok\nmacro_f1: 0.5", "f1", SHARE, None),
        ("status: ok\nf1: 0.5", "f1", SHARE, 0.5),
        ("status: ok\nF1-score: 0.5", "f1", SHARE, 0.5),
        ("status: ok\npercentile: 0.5", "percentile", SHARE, 0.5),
        ("status: ok\npercentile: 50%", "percentile", SHARE, 0.5),
        ("status: ok\npercentile: 50", "percentile", SHARE, None),
    ],
)
def test_values_of_other_metrics(text, name, bounds, value):
    if value is None:
        with pytest.raises(UnreadableAnswerError):
            read(text, name, bounds)
    else:
        assert read(text, name, bounds).value == value


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("error", "error"),
        ("Failed", "error"),
        ("crashed", "error"),
        ("timed out", "timeout"),
        ("Time-out", "timeout"),
        ("out of memory", "oom"),
        ("OOM", "oom"),
        ("output limit", "output_limit"),
        ("no_submission", "no_submission"),
        ("bad columns", "bad_columns"),
        ("bad_ids", "bad_ids"),
        ("bad_values", "bad_values"),
        ("unreadable", "unreadable"),
        ("metric error", "metric_error"),
    ],
)
def test_failures_need_no_value_and_take_none(word, status):
    text = f"status: {word}\nroc_auc: 0.97\nmessage: The column id is missing.\nstderr:\nKeyError: 'id'"
    assert read(text) == Answer(status, None, "The column id is missing.", "", "KeyError: 'id'")


def test_streams_are_kept():
    answer = read("status: ok\nroc_auc: 0.5\n**stdout:**\nfold 1\n\nfold 2\nstderr: a warning\nand more")
    assert (answer.stdout, answer.stderr) == ("fold 1\n\nfold 2", "a warning\nand more")


@given(
    st.lists(
        st.sampled_from(
            [
                "status",
                ":",
                " ",
                "\n",
                "ok",
                "error",
                "roc_auc",
                "0.9",
                "%",
                "-",
                "**",
                "{",
                "}",
                '"',
                "stdout",
            ]
        )
        | st.text(max_size=3)
    ).map("".join)
)
@example("{" * 5000)
@example('{"a":' * 2000 + "}" * 2000)
@example("status: ok\nroc_auc:" + " " * 5000)
@example("status: ok\nroc_auc: about" + "*" * 5000 + "x")
@example("status" * 3000)
@example("roc " * 3000)
@example("status: ok\nroc_auc: " + "9" * 5000)
@example("status: ok\nroc_auc: 0." + "0," * 3000)
def test_any_text_is_an_answer_or_is_refused(text):
    try:
        answer = read(text)
    except UnreadableAnswerError:
        return
    assert (answer.status == "ok") == (answer.value is not None)
    assert answer.value is None or 0 <= answer.value <= 1


@given(value=st.floats(0, 1), stdout=st.text("ab 1.\n"), as_json=st.booleans())
def test_values_and_streams_survive(value, stdout, as_json):
    text = f"status: ok\nroc_auc: {value}\nstdout:\n{stdout}"
    if as_json:
        text = json.dumps({"status": "ok", "roc_auc": value, "stdout": stdout})
    answer = read(text)
    assert answer.value == value
    assert answer.stdout == "\n".join(stdout.strip().splitlines())
