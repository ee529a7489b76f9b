"""The language-model world model: what it asks, how answers become scores, and what stays missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stubs import tiny_language_model
from wmrl_envs.autoresearch.competition import Competition, load_competition
from wmrl_envs.autoresearch.metrics import get_metric
from wmrl_envs.autoresearch.prompts import outcome_text, task_text
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards import (
    LanguageModelWorldModel,
    PredictedEvaluator,
    Prediction,
    PredictionRequest,
)
from wmrl_rewards.language_models import Generation, HuggingFaceModel, Sampling
from wmrl_rewards.world_models import prompts

HOT = Sampling(max_new_tokens=100, temperature=1.0, seed=0)


class Recorded:
    """A language model that gives recorded replies and remembers its questions; a character is a token."""

    def __init__(self, *replies):
        self.replies = replies
        self.conversations = []

    def generate(self, conversations, sampling, samples=1):
        self.conversations += conversations
        generations = [r if isinstance(r, Generation) else Generation(r) for r in self.replies]
        assert len(generations) == samples
        return [generations for _ in conversations]

    def count_tokens(self, text):
        return len(text)


@pytest.fixture
def make_competition(tmp_path):
    """A competition with boards of four entries each."""

    def make(metric="roc_auc", public=(0.9, 0.8, 0.7, 0.6), private=(0.5, 0.4, 0.3, 0.2)):
        (tmp_path / "private").mkdir(exist_ok=True)
        for half, board in (("public", public), ("private", private)):
            lines = ["rank,score", *(f"{rank},{score}" for rank, score in enumerate(board, 1))]
            (tmp_path / "private" / f"{half}_leaderboard.csv").write_text("\n".join(lines))
        return Competition("demo", "Demo", "tabular", get_metric(metric), tmp_path, "id", ("target",))

    return make


def ask(competition, *replies, split="public", solution="print(1)", **settings):
    model = Recorded(*replies)
    context = {"competition": competition, "split": split}
    world_model = LanguageModelWorldModel(model, samples=len(replies), **settings)
    (prediction,) = world_model.predict([PredictionRequest("Task.", solution, context=context)])
    return prediction


@pytest.mark.parametrize(
    ("value", "split", "score"),
    [
        (0.95, "public", 1.0),
        (0.8, "public", 0.75),
        (0.75, "public", 0.5),
        (0.1, "public", 0.0),
        (0.35, "private", 0.5),
    ],
)
def test_a_value_goes_through_the_leaderboard_of_the_half(make_competition, value, split, score):
    prediction = ask(make_competition(), f"status: ok\nroc_auc: {value}\nstdout:\ndone", split=split)
    assert prediction.score == score
    assert prediction.error is None
    assert prediction.outcome == Evaluation(
        Outcome("ok", stdout="done"), Grade("ok", score=value, percentile=score), source="world_model"
    )


def test_a_metric_where_lower_is_better(make_competition):
    competition = make_competition("rmse", public=(1.0, 2.0, 3.0, 4.0))
    assert ask(competition, "status: ok\nrmse: 1.5").score == 0.75


def test_a_value_that_cannot_be_does_not_top_the_board(make_competition):
    prediction = ask(make_competition(), "status: ok\nroc_auc: 97.1")
    assert prediction.score is None
    assert prediction.error == "The answer gives roc_auc = 97.1, which it cannot be."


@pytest.mark.parametrize("status", ["error", "timeout", "oom", "output_limit"])
def test_a_predicted_crash_scores_zero(make_competition, status):
    prediction = ask(make_competition(), f"status: {status}\nstderr:\nKeyError: 'id'")
    assert prediction.score == 0.0
    assert prediction.outcome == Evaluation(Outcome(status, stderr="KeyError: 'id'"), source="world_model")


@pytest.mark.parametrize("status", ["no_submission", "unreadable", "bad_columns", "bad_ids", "bad_values"])
def test_a_predicted_bad_submission_scores_zero(make_competition, status):
    prediction = ask(make_competition(), f"status: {status}\nmessage: The column id is missing.")
    assert prediction.score == 0.0
    assert prediction.outcome == Evaluation(
        Outcome("ok"), Grade(status, message="The column id is missing."), source="world_model"
    )


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("No idea.", "The answer names no status."),
        (Generation("status", finished=False), r"names no status. \(It was cut off at max_new_tokens.\)"),
        (Generation("status: ok\nroc_auc: 0.9", finished=False), "gives no value of roc_auc"),
        (Generation("", finished=False, error="No answer from http://x."), "^No answer from http://x.$"),
    ],
)
def test_what_cannot_be_read_is_missing_and_says_why(make_competition, reply, error):
    prediction = ask(make_competition(), reply)
    assert prediction.score is None
    assert prediction.outcome is None
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(prediction.error)


class Stammering:
    """Answers readably only from a temperature on; remembers with which sampling it was asked what."""

    def __init__(self, temperature):
        self.temperature = temperature
        self.asked = []

    def generate(self, conversations, sampling, samples=1):
        self.asked.append((sampling.temperature, sampling.seed, len(conversations)))
        hot = sampling.temperature >= self.temperature
        return [
            [Generation("status: ok\npercentile: 0.5" if hot or "good" in c[-1]["content"] else "Hm.")]
            for c in conversations
        ]

    def count_tokens(self, text):
        return len(text)


@pytest.mark.parametrize(
    ("needs", "retries", "score", "asked"),
    [
        (0.5, 1, 0.5, [(0, None, 3), (0.7, 1, 2)]),
        (0.5, 0, None, [(0, None, 3)]),
        (2.0, 2, None, [(0, None, 3), (0.7, 1, 2), (0.7, 2, 2)]),
    ],
)
def test_what_cannot_be_read_is_asked_again(needs, retries, score, asked):
    model = Stammering(needs)
    world_model = LanguageModelWorldModel(model, predict="percentile", retries=retries)
    programs = ["good = 1", "bad = 1", "bad = 2", "bad = 1"]
    predictions = world_model.predict([PredictionRequest("Task.", program) for program in programs])
    assert [prediction.score for prediction in predictions] == [0.5, score, score, score]
    assert model.asked == asked
    assert predictions[1].new_tokens == (len(asked) - 1) * len("Hm.") + (
        len("Hm.") if score is None else len("status: ok\npercentile: 0.5")
    )


def test_a_second_attempt_keeps_to_the_seed():
    model = Stammering(2.0)
    LanguageModelWorldModel(model, predict="percentile", sampling=HOT).predict([PredictionRequest("T", "x")])
    assert model.asked == [(1.0, 0, 1), (1.0, 1, 1)]


def test_percentile_is_the_other_question(make_competition):
    model = Recorded("status: ok\npercentile: 73%")
    world_model = LanguageModelWorldModel(model, predict="percentile")
    request = PredictionRequest("Task.", "x", context={"competition": make_competition()})
    (prediction,) = world_model.predict([request])
    assert prediction.score == 0.73
    assert prediction.outcome.grade == Grade("ok", percentile=0.73)
    assert model.conversations[0][0]["content"] == prompts.PERCENTILE_SYSTEM
    assert world_model.predict([PredictionRequest("Any task.", "x")])[0].score == 0.73
    assert ask(make_competition(), "status: error", predict="percentile").score == 0.0


def test_several_samples_are_averaged_and_the_middle_one_speaks(make_competition):
    replies = [f"status: ok\nroc_auc: {value}" for value in (0.95, 0.65, 0.85)]
    prediction = ask(make_competition(), *replies, "I do not know.", "status: error", sampling=HOT)
    assert prediction.samples == (1.0, 0.25, 0.75, 0.0)
    assert prediction.score == 0.5
    assert prediction.outcome.grade.score in (0.65, 0.85)
    assert ask(make_competition(), "?", "??", sampling=HOT).error == "The answer names no status."


@pytest.mark.parametrize("predict", ["outcome", "percentile"])
def test_a_model_that_was_trained_for_this_one_job_is_told_nothing_besides_the_question(
    predict, make_competition
):
    model = Recorded("status: error")
    model.takes_instructions = False
    request = PredictionRequest("The task.", "a", context={"competition": make_competition()})
    LanguageModelWorldModel(model, predict=predict).predict([request])
    LanguageModelWorldModel(model, predict=predict, system_prompt="Say it.").predict([request])
    question = {"role": "user", "content": "The task.\n\n```python\na\n```"}
    assert model.conversations == [[question], [{"role": "system", "content": "Say it."}, question]]


def test_the_question_is_the_agreed_layout(make_competition):
    model = Recorded("status: error")
    context = {"competition": make_competition()}
    requests = [
        PredictionRequest("The task.", "\n  import os\nprint(1)\n\n", context=context),
        PredictionRequest("The task.", "b", history=[("a = 1\n", "status: error\n")], context=context),
    ]
    LanguageModelWorldModel(model).predict(requests)
    LanguageModelWorldModel(model, system_prompt="").predict(requests[:1])
    assert model.conversations == [
        [
            {"role": "system", "content": prompts.SYSTEM},
            {"role": "user", "content": "The task.\n\n```python\nimport os\nprint(1)\n```"},
        ],
        [
            {"role": "system", "content": prompts.SYSTEM},
            {
                "role": "user",
                "content": "The task.\n\nAn earlier program:\n```python\na = 1\n```\n\n"
                "What happened:\nstatus: error\n\nThe program to judge:\n\n```python\nb\n```",
            },
        ],
        [{"role": "user", "content": "The task.\n\n```python\nimport os\nprint(1)\n```"}],
    ]


def test_equal_questions_of_a_batch_are_asked_once(make_competition):
    competition = make_competition()
    model = Recorded("status: ok\nroc_auc: 0.45")
    requests = [
        PredictionRequest("T", code, context={"competition": competition, "split": split})
        for code, split in (("a", "public"), ("b", "public"), ("a\n", "private"), ("b", "public"))
    ]
    predictions = LanguageModelWorldModel(model).predict(requests)
    assert len(model.conversations) == 2
    assert [prediction.score for prediction in predictions] == [0.0, 0.0, 0.75, 0.0]


@given(
    task=st.text(min_size=0, max_size=3000), code=st.text("ab =()\n", max_size=300), turns=st.integers(0, 3)
)
def test_a_long_question_loses_history_and_task_but_never_the_program(task, code, turns):
    model = Recorded("status: error")
    history = [(f"program {number}", "x" * 200) for number in range(turns)]
    world_model = LanguageModelWorldModel(
        model,
        system_prompt="Say what happens.",
        max_context_tokens=1000,
        sampling=Sampling(max_new_tokens=100, temperature=0),
        predict="percentile",
    )
    (prediction,) = world_model.predict([PredictionRequest(task, code, history=history)])
    (conversation,) = model.conversations
    user = conversation[-1]["content"]
    assert prediction.score == 0.0
    assert sum(len(message["content"]) for message in conversation) + 100 <= 1000
    assert user.endswith(f"```python\n{code.strip()}\n```")
    whole = prompts.user_message(task, code, history)
    room = 1000 - 100 - 64 - len("Say what happens.")
    if len(whole) <= room:
        assert user == whole
    elif len(prompts.user_message(task, code)) > room:
        assert "characters cut" in user
        assert "program" not in user.replace(task, "")
        assert len(user) > room - 10  # as much of the task as fits
    else:
        assert user.startswith(task)


def test_a_program_that_does_not_fit_is_missing(make_competition):
    prediction = ask(make_competition(), "status: ok", solution="x" * 12_000)
    assert prediction == Prediction(
        None, error="The program alone is longer than the context of 12288 tokens."
    )


def test_requests_without_program_or_competition_are_missing(make_competition):
    world_model = LanguageModelWorldModel(Recorded("status: error"))
    without_program, without_competition, good = world_model.predict(
        [
            PredictionRequest("T", context={"competition": make_competition()}),
            PredictionRequest("T", "x"),
            PredictionRequest("T", "x", context={"competition": make_competition()}),
        ]
    )
    assert "the request has none" in without_program.error
    assert "names no competition" in without_competition.error
    assert good.score == 0.0
    assert world_model.predict([]) == []


@given(
    status=st.sampled_from(["ok", "error", "timeout", "oom", "output_limit"]),
    value=st.integers(0, 10_000).map(lambda n: n / 10_000),
    stdout=st.text("ab1. \n"),
    stderr=st.text("ab1. \n"),
)
def test_it_reads_what_the_environment_writes(status, value, stdout, stderr):
    """A perfect world model, which says word for word what would be observed, is read without loss."""
    digits = load_competition("digits")
    grade = Grade("ok", score=value, percentile=0.5) if status == "ok" else None
    real = Evaluation(Outcome(status, stdout.strip(), stderr.strip()), grade)
    predicted = ask(digits, outcome_text(real, digits)).outcome
    assert predicted.status == real.status
    assert predicted.outcome.stdout.split() == stdout.split()
    assert predicted.outcome.stderr.split() == stderr.split()
    assert grade is None or predicted.grade.score == value


def test_a_real_language_model_that_says_nothing_readable(tmp_path):
    model = HuggingFaceModel(tiny_language_model(tmp_path, max_context=2048), device="cpu")
    sampled = Sampling(max_new_tokens=4, seed=0)
    world_model = LanguageModelWorldModel(
        model, samples=2, sampling=sampled, max_context_tokens=400, system_prompt=""
    )
    digits = load_competition("digits")
    request = PredictionRequest(task_text(digits), "print(1)", context={"competition": digits})
    (prediction,) = world_model.predict([request])
    assert prediction.score is None  # random weights say nothing that could be read
    assert "The answer names no status. (It was cut off" in prediction.error


def test_it_stands_behind_the_evaluator_seam(make_competition):
    from wmrl_envs.evaluation import Solution

    world_model = LanguageModelWorldModel(Recorded("status: ok\naccuracy: 0.5"))
    (evaluation,) = PredictedEvaluator(world_model).evaluate([Solution("digits", "print(1)")])
    assert evaluation.source == "world_model"
    assert outcome_text(evaluation, load_competition("digits")).startswith("status: ok\naccuracy: 0.5000\n")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"samples": 0}, "samples must be at least 1"),
        ({"samples": 4}, "At temperature 0 all 4 samples would be equal"),
        ({"predict": "score"}, "predict must be 'outcome' or 'percentile'"),
        ({"max_context_tokens": 1024}, "leaves no room for a question"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LanguageModelWorldModel(Recorded(), **settings)
