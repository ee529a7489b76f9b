"""Answers as a JSON object by the schema: asked for where the engine can bind them, read without a guess."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards import LanguageModelWorldModel, PredictionRequest
from wmrl_rewards.errors import RewardError
from wmrl_rewards.language_models import Generation, Sampling, takes_schema
from wmrl_rewards.world_models import answers, prompts
from wmrl_rewards.world_models.answers import Answer, UnreadableAnswerError, read_answer
from wmrl_rewards.world_models.prompts import SCHEMA

SHARE = (0.0, 1.0)
STATUSES = SCHEMA["properties"]["status"]["enum"]


def read(text, finished=True):
    return read_answer(text, "roc_auc", SHARE, finished=finished)


def answer(status="ok", error_type=None, error_line=None, value=None, feedback=""):
    return {
        "status": status,
        "error_type": error_type,
        "error_line": error_line,
        "value": value,
        "feedback": feedback,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (answer(value=0.91, feedback="AUC 0.93"), Answer("ok", 0.91, stdout="AUC 0.93")),
        (answer(value=1), Answer("ok", 1.0)),
        (
            answer("error", "KeyError", 12, feedback="'id'"),
            Answer("error", stderr="File \"solution.py\", line 12\nKeyError: 'id'"),
        ),
        (
            answer("error", "KeyError", None, feedback="KeyError: 'id'"),
            Answer("error", stderr="KeyError: 'id'"),
        ),
        (answer("error"), Answer("error")),
        (answer("timeout", value=0.4, feedback="fold 1"), Answer("timeout", message="fold 1")),
        (
            answer("bad_columns", feedback="status: ok, or is it? roc_auc: 0.3"),
            Answer("bad_columns", message="status: ok, or is it? roc_auc: 0.3"),
        ),
        (
            answer(value=0.5, feedback="status: error\nroc_auc: 0.7"),
            Answer("ok", 0.5, stdout="status: error\nroc_auc: 0.7"),
        ),
        ({"status": "ok", "value": 0.5}, Answer("ok", 0.5)),
    ],
)
def test_the_object_in_the_environments_terms(fields, expected):
    assert read(json.dumps(fields)) == expected
    assert read(f"Here it is:\n```json\n{json.dumps(fields, indent=1)}\n```\nI hope this helps.") == expected


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (answer(), "no value of roc_auc"),
        (answer(value=97.1), "which it cannot be"),
        (answer(value="0.8 to 0.9"), "no value of roc_auc"),
        (answer(value=[0.8]), "no value of roc_auc"),
        (answer(value=True), "no value of roc_auc"),
        (answer("perhaps", value=0.5), "does not name one known status"),
        (answer(["ok", "error"], value=0.5), "does not name one known status"),
        ({"status": "ok", "metric": "accuracy", "value": 0.9}, "no value of roc_auc"),
    ],
)
def test_an_object_that_leaves_something_open_is_refused(fields, problem):
    with pytest.raises(UnreadableAnswerError, match=problem):
        read(json.dumps(fields))


def values(status):
    return st.floats(0, 1) if status == "ok" else st.none()


objects = st.sampled_from(STATUSES).flatmap(
    lambda status: st.builds(
        answer,
        status=st.just(status),
        error_type=st.none() | st.text(max_size=8),
        error_line=st.none() | st.integers(1, 99),
        value=values(status),
        feedback=st.text(max_size=20),
    )
)


@given(objects, st.integers(0, 2).map(lambda indent: indent or None))
def test_whatever_follows_the_schema_is_read_as_it_is(fields, indent):
    found = read(json.dumps(fields, indent=indent))
    assert (found.status, found.value) == (fields["status"], fields["value"])


@given(objects, st.data())
def test_an_object_that_was_cut_off_says_the_same_or_nothing(fields, data):
    whole = json.dumps(fields, ensure_ascii=False)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = read(cut, finished=False)
    except UnreadableAnswerError:
        return
    assert (found.status, found.value) == (fields["status"], fields["value"])


def test_a_field_that_is_complete_outlives_a_cut():
    text = '{"status": "ok", "error_type": null, "error_line": null, "value": 0.75, "feedback": "fold 1, fo'
    assert read(text, finished=False) == Answer("ok", 0.75)
    with pytest.raises(UnreadableAnswerError, match="no value"):
        read('{"status": "ok", "value": 0.7', finished=False)


class Bound:
    """Says one thing to all, and remembers how it was asked; it can bind replies to a schema, or cannot."""

    def __init__(self, text, takes_schema=True):
        self.text = text
        self.takes_schema = takes_schema
        self.asked = []

    def generate(self, conversations, sampling, samples=1):
        self.asked.append((sampling, conversations))
        return [[Generation(self.text)] * samples for _ in conversations]

    def count_tokens(self, text):
        return len(text) // 4


REQUEST = PredictionRequest("Task.", "print(1)")


def test_a_prediction_from_an_object():
    model = Bound(json.dumps(answer("error", "ValueError", 3, feedback="no such column")))
    (prediction,) = LanguageModelWorldModel(model, predict="percentile").predict([REQUEST])
    stderr = 'File "solution.py", line 3\nValueError: no such column'
    assert prediction.score == 0
    assert prediction.outcome == Evaluation(Outcome("error", stderr=stderr), source="world_model")
    model = Bound(json.dumps(answer("bad_ids", feedback="3 ids are missing.")))
    (prediction,) = LanguageModelWorldModel(model, predict="percentile").predict([REQUEST])
    grade = Grade("bad_ids", message="3 ids are missing.")
    assert prediction.outcome == Evaluation(Outcome("ok"), grade, source="world_model")


@pytest.mark.parametrize(
    ("able", "structured", "by_schema"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
@pytest.mark.parametrize("predict", ["outcome", "percentile"])
def test_the_schema_goes_with_its_instructions(able, structured, by_schema, predict):
    model = Bound("{}", able)
    assert takes_schema(model) == able
    world_model = LanguageModelWorldModel(model, predict=predict, structured=structured, retries=0)
    assert world_model.sampling.schema == (SCHEMA if by_schema else None)
    assert world_model.system_prompt == prompts.system_prompt(predict, by_schema)
    assert ("JSON" in world_model.system_prompt) == by_schema
    assert all(status in world_model.system_prompt for status in STATUSES)


def test_a_second_attempt_is_bound_too():
    model = Bound("Hm.")
    LanguageModelWorldModel(model, predict="percentile", sampling=Sampling(temperature=0)).predict([REQUEST])
    assert [sampling.schema for sampling, _ in model.asked] == [SCHEMA, SCHEMA]


def test_predictions_by_schema_and_without_are_not_confused():
    model = Bound("{}")
    model.fingerprint = "m"
    one, other = (LanguageModelWorldModel(model, structured=way, system_prompt="x") for way in (True, False))
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_readable_answer_is_read_once(monkeypatch, retries):
    read_texts = []
    monkeypatch.setattr(
        "wmrl_rewards.world_models.language_model.read_answer",
        lambda text, *rest, **named: read_texts.append(text) or answers.read_answer(text, *rest, **named),
    )
    model = Bound(json.dumps(answer(value=0.5)))
    LanguageModelWorldModel(model, predict="percentile", retries=retries).predict([REQUEST])
    assert len(read_texts) == 1


HALF = "\\ud83d"  # in JSON, half of a character: no UTF-8, hence no tokenizer and no database can hold it


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(answer(value=0.5)).replace('""', f'"fold {HALF}"'),
        json.dumps(answer("error", "KeyError")).replace('""', f'"{HALF}"'),
        json.dumps(answer("bad_ids")).replace('""', f'"{HALF}"'),
        "status: error\nstderr: KeyError: \ud83d",
        "status: \ud83d",
        "\ud83d",
    ],
)
def test_half_a_character_in_an_answer_reaches_nobody(text):
    (prediction,) = LanguageModelWorldModel(Bound(text), predict="percentile").predict([REQUEST])
    for words in _texts(prediction):
        words.encode("utf-8")


@pytest.mark.parametrize("given", [[], [[Generation("")]], [[], []], [[Generation("")] * 2] * 2])
def test_a_language_model_that_loses_replies_is_refused(given):
    model = Bound("")
    model.generate = lambda *_: given
    world_model = LanguageModelWorldModel(model, predict="percentile")
    with pytest.raises(RewardError, match="must give 1 replies to each of 2 conversations"):
        world_model.predict([REQUEST, PredictionRequest("Task.", "print(2)")])


def test_half_a_character_in_an_error_reaches_nobody():
    model = Bound("")
    model.generate = lambda asked, *_: [[Generation("", error="Server: \ud83d.")] for _ in asked]
    (prediction,) = LanguageModelWorldModel(model, predict="percentile").predict([REQUEST])
    assert prediction.error == "Server: ?."


def _texts(prediction):
    outcome = prediction.outcome
    found = [prediction.error, outcome and outcome.error]
    if outcome is not None:
        run, grade = outcome.outcome, outcome.grade
        found += [run and run.stdout, run and run.stderr, grade and grade.message]
    return [text for text in found if text]
