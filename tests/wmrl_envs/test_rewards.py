import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import load_competition
from wmrl_envs.autoresearch.env import AutoResearchEnv
from wmrl_envs.autoresearch.episode import Episode
from wmrl_envs.autoresearch.rewards import worth
from wmrl_envs.evaluation import Evaluation, Grade, Outcome

from .folders import Recorded

NO_PYTHON = Evaluation(
    Outcome("error", stderr="  File 'x', line 1\n    (\n    ^\nSyntaxError: '(' was never closed")
)
CRASH = Evaluation(Outcome("error", stderr="Traceback ...\nNameError: SyntaxError"))
NOTHING = Evaluation(Outcome("ok"), Grade("no_submission", message="No file."))
LOST = Evaluation(Outcome("infrastructure"), error="The sandbox broke.")
CODE = "```python\nprint(1)\n```"


def valid(percentile):
    return Evaluation(Outcome("ok"), Grade("ok", score=0.9, percentile=percentile))


@pytest.mark.parametrize(
    ("evaluation", "percentile", "graded"),
    [
        (NO_PYTHON, 0.0, 0.0),
        (Evaluation(Outcome("error", stderr="IndentationError: unexpected indent")), 0.0, 0.0),
        (CRASH, 0.0, 0.1),
        (Evaluation(Outcome("timeout")), 0.0, 0.1),
        (Evaluation(Outcome("oom")), 0.0, 0.1),
        (Evaluation(Outcome("ok")), 0.0, 0.2),
        (NOTHING, 0.0, 0.2),
        (Evaluation(Outcome("ok"), Grade("bad_ids", message="No.")), 0.0, 0.2),
        (valid(0.0), 0.0, 0.5),
        (valid(0.4), 0.4, 0.7),
        (valid(1.0), 1.0, 1.0),
        (LOST, None, None),
        (Evaluation(None, source="world_model", error="No reply."), None, None),
    ],
)
def test_what_an_evaluation_is_worth(evaluation, percentile, graded):
    assert worth(evaluation) == percentile
    assert worth(evaluation, "graded") == pytest.approx(graded)


@given(st.floats(0, 1))
def test_any_valid_submission_beats_any_failure(percentile):
    assert 0.5 <= worth(valid(percentile), "graded") <= 1.0


def play(evaluations, **settings):
    episode = Episode(load_competition("digits"), max_turns=len(evaluations), **settings)
    for evaluation in evaluations:
        episode.reply(CODE)
        episode.receive(evaluation)
    return episode.score


@pytest.mark.parametrize(
    ("evaluations", "final", "best"),
    [([valid(0.4), CRASH], 0.1, 0.7), ([CRASH, NOTHING, NO_PYTHON], 0.0, 0.2), ([LOST, CRASH], 0.1, 0.1)],
)
def test_the_score_of_an_episode_follows_its_reward(evaluations, final, best):
    assert play(evaluations, reward="graded") == pytest.approx(final)
    assert play(evaluations, reward="graded", trajectory_score="best") == pytest.approx(best)


def test_the_environment_gives_it():
    env = AutoResearchEnv("digits", evaluator=Recorded(valid(0.4), NOTHING), max_turns=1, reward="graded")
    env.reset()
    _, reward, terminated, _, info = env.step(CODE)
    assert (reward, terminated, info["percentile"]) == (0.7, True, 0.4)
    env.reset()
    assert env.step(CODE)[1] == 0.2
    env.reset()
    assert env.step("I wonder.")[1] == 0.0
