import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import load_competition
from wmrl_envs.autoresearch.episode import Episode
from wmrl_envs.autoresearch.prompts import outcome_text, task_text
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome

COMPETITION = load_competition("breast-cancer")
CODE = "```python\nprint({})\n```"
CRASH = Evaluation(Outcome("error", stderr="NameError"))
LOST = Evaluation(Outcome("infrastructure"), error="The sandbox broke.")
UNSEEN = Evaluation(None, source="world_model", error="No reply.")


def good(percentile):
    return Evaluation(Outcome("ok"), Grade("ok", score=0.9, percentile=percentile))


def play(*evaluations, **settings):
    """An episode with one program for each evaluation; None stands for a reply without code."""
    episode = Episode(COMPETITION, max_turns=len(evaluations), **settings)
    for number, evaluation in enumerate(evaluations):
        if evaluation is None:
            assert episode.reply("I wonder.") is None
        else:
            solution = episode.reply(CODE.format(number))
            assert (solution.code, solution.turn) == (f"print({number})", number)
            episode.receive(evaluation)
    assert episode.done
    return episode


@pytest.mark.parametrize(
    ("evaluations", "final", "best"),
    [
        ([good(0.3), good(0.8), good(0.5)], 0.5, 0.8),
        ([good(0.8), CRASH], 0.0, 0.8),
        ([CRASH, good(0.4), None], 0.4, 0.4),
        ([None, None], 0.0, 0.0),
        ([CRASH, CRASH], 0.0, 0.0),
        ([good(0.8), LOST], None, 0.8),
        ([LOST, good(0.0)], 0.0, 0.0),
        ([LOST, UNSEEN], None, None),
        ([LOST, None], None, None),
        ([CRASH, LOST], None, 0.0),
    ],
)
def test_trajectory_score(evaluations, final, best):
    assert play(*evaluations).score == final
    assert play(*evaluations, trajectory_score="best").score == best


def test_the_first_of_equally_good_programs_is_scored():
    solution, evaluation = play(CRASH, good(0.7), good(0.7), trajectory_score="best").scored
    assert (solution.code, evaluation.score) == ("print(1)", 0.7)
    solution, _ = play(CRASH, good(0.7), good(0.7)).scored
    assert solution.code == "print(2)"
    assert play(None).scored is None


def test_observations_follow_the_replies():
    episode = Episode(COMPETITION, max_turns=3)
    assert episode.observation == task_text(COMPETITION)
    episode.reply(CODE.format(1))
    assert (episode.turn, episode.done) == (0, False)
    assert episode.waiting.competition is COMPETITION
    episode.receive(good(0.5))
    assert episode.observation == outcome_text(good(0.5), COMPETITION)
    assert (episode.turn, episode.done, episode.waiting) == (1, False, None)
    episode.reply("no idea")
    assert episode.observation.startswith(
        "status: no_code\nmessage: The reply holds no program. Send one complete"
    )
    episode.reply("request_info")
    assert episode.observation == task_text(COMPETITION)
    assert episode.done
    assert [turn.status for turn in episode.turns] == ["ok", "no_code", "request_info"]
    assert [turn.text for turn in episode.turns][1:] == ["no idea", "request_info"]
    assert episode.evaluations == [good(0.5)]


def test_submit_keeps_the_last_result():
    episode = Episode(COMPETITION)
    episode.reply(CODE.format(1))
    episode.receive(good(0.5))
    assert episode.reply("submit") is None
    assert (episode.done, episode.score, episode.turn) == (True, 0.5, 2)
    assert episode.observation.endswith(outcome_text(good(0.5), COMPETITION))


def test_submit_without_a_program_scores_nothing():
    episode = Episode(COMPETITION)
    episode.reply("submit")
    assert (episode.done, episode.score, episode.scored) == (True, 0.0, None)
    assert "score is 0" in episode.observation


def test_a_cut_reply_is_told_apart():
    episode = Episode(COMPETITION)
    assert not episode.truncated_reply
    assert episode.reply("```python\nprint(1").code == "print(1"
    assert episode.truncated_reply
    episode.receive(CRASH)
    assert episode.truncated_reply
    episode.reply(CODE)
    assert not episode.truncated_reply


def test_calls_out_of_order_raise():
    episode = Episode(COMPETITION, max_turns=1)
    with pytest.raises(RuntimeError, match="No evaluation is waited for"):
        episode.receive(CRASH)
    episode.reply(CODE)
    with pytest.raises(RuntimeError, match="waits for an evaluation"):
        episode.reply(CODE)
    episode.receive(CRASH)
    with pytest.raises(RuntimeError, match="No evaluation is waited for"):
        episode.receive(CRASH)
    with pytest.raises(RuntimeError, match="The episode is over"):
        episode.reply(CODE)


@pytest.mark.parametrize("settings", [{"max_turns": 0}, {"trajectory_score": "mean"}, {"half": "both"}])
def test_bad_settings(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Episode(COMPETITION, **settings)


def test_it_can_be_pickled_while_it_waits():
    episode = Episode(COMPETITION)
    episode.reply(CODE.format(1))
    twin = pickle.loads(pickle.dumps(episode))
    twin.receive(good(0.5))
    assert (twin.score, episode.turn) == (0.5, 0)


EVALUATIONS = st.sampled_from([good(0.0), good(0.5), good(1.0), CRASH, LOST, UNSEEN])
REPLIES = st.one_of(st.text(max_size=20), st.just(CODE), st.just("submit"))


@settings(max_examples=200)
@given(st.lists(st.tuples(REPLIES, EVALUATIONS), min_size=6, max_size=6), st.sampled_from(["final", "best"]))
def test_any_episode_ends_in_time_with_a_score_or_a_reason(steps, trajectory_score):
    episode = Episode(COMPETITION, trajectory_score=trajectory_score)
    for text, evaluation in steps:
        if episode.done:
            break
        if episode.reply(text) is not None:
            episode.receive(evaluation)
    assert episode.done
    assert episode.turn <= 4
    score = episode.score
    assert (score is None) == (episode.scored is not None and episode.scored[1].score is None)
    assert score is None or 0.0 <= score <= 1.0


def test_limits_hold_for_the_task_and_for_every_observation():
    episode = Episode(COMPETITION, max_turns=3, overview_limit=100, observation_limit=80)
    task = task_text(COMPETITION)
    assert len(episode.observation) <= 100
    assert episode.observation == episode.overview
    assert task.startswith(episode.observation.partition("\n[... ")[0])
    assert task.endswith(episode.observation.rpartition(" ...]\n")[2])
    episode.reply("request_info")
    assert len(episode.observation) <= 80
    episode.reply(CODE)
    episode.receive(Evaluation(Outcome("error", stdout="x" * 500, stderr="y" * 500 + "\nNameError: z")))
    assert len(episode.observation) <= 80
    assert episode.observation.startswith("status: error")
    assert episode.observation.endswith("NameError: z")
    assert episode.turns[-1].observation == episode.observation


def test_limits_count_the_tokens_of_the_agent():
    long = Evaluation(Outcome("error", stderr="word " * 5000))
    episode = Episode(COMPETITION, observation_limit=70, count_tokens=lambda text: len(text.split()))
    assert episode.observation == task_text(COMPETITION)
    episode.reply(CODE)
    episode.receive(long)
    assert 60 <= len(episode.observation.split()) <= 70


@pytest.mark.parametrize(
    "settings",
    [{"reward": "raw"}, {"feedback_score": "all"}, {"observation_limit": 63}, {"overview_limit": 0}],
)
def test_bad_options(settings):
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} must be"):
        Episode(COMPETITION, **settings)


@pytest.mark.parametrize(("feedback_score", "raw_is_told"), [("raw", True), ("none", False)])
def test_the_score_is_told_as_asked(feedback_score, raw_is_told):
    episode = Episode(COMPETITION, feedback_score=feedback_score)
    episode.reply(CODE)
    episode.receive(good(0.25))
    episode.reply("submit")
    for turn in episode.turns:
        assert ("0.9000" in turn.observation) == raw_is_told
        assert "0.25" not in turn.observation
    assert episode.score == 0.25
