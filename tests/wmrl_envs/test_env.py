import copy
import math
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.autoresearch.competition import bundled_names, load_competition
from wmrl_envs.autoresearch.env import AutoResearchEnv
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_envs.errors import CompetitionError, ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome

from .folders import Recorded, write_folder

ID = "wmrl/MLEDojo-v0"
CODE = "```python\nprint(1)\n```"
COPY_SAMPLE = """```python
import os, shutil
shutil.copy(os.environ["DATA_DIR"] + "/sample_submission.csv", os.environ["SUBMISSION_PATH"])
```"""
CRASH = Evaluation(Outcome("error", stderr="NameError"))
LOST = Evaluation(Outcome("infrastructure"), error="The sandbox broke.")
KEYS = ["competition", "turn", "status", "score", "percentile", "error"]


def good(percentile):
    return Evaluation(Outcome("ok"), Grade("ok", score=0.9, percentile=percentile))


def make(**settings):
    return gym.make(ID, competition="breast-cancer", **settings)


@pytest.mark.parametrize("settings", [{}, {"competition": "digits"}, {"render_mode": "ansi", "max_turns": 1}])
def test_check_env_has_nothing_to_say(settings):
    env = gym.make(ID, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()
    env.close()


def test_an_episode_step_by_step():
    env = make(evaluator=Recorded(CRASH, good(0.4), good(0.7)), max_turns=3)
    observation, info = env.reset(seed=0)
    assert observation == task_text(load_competition("breast-cancer"))
    assert info == dict.fromkeys(KEYS) | {"competition": "breast-cancer", "turn": 0, "status": "started"}
    observation, reward, terminated, truncated, info = env.step(CODE)
    assert observation == "status: error\nstderr:\nNameError"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["status"], info["score"], info["percentile"], info["error"]) == ("error", None, None, None)
    assert env.step(CODE)[1] == 0.0
    _, reward, terminated, truncated, info = env.step(CODE)
    assert (reward, terminated, truncated) == (0.7, True, False)
    assert type(reward) is float
    assert truncated is False
    assert info == dict(zip(KEYS, ["breast-cancer", 3, "ok", 0.9, 0.7, None], strict=True))


@pytest.mark.parametrize(("trajectory_score", "reward"), [("final", 0.0), ("best", 0.4)])
def test_trajectory_score(trajectory_score, reward):
    env = make(evaluator=Recorded(good(0.4), CRASH), max_turns=2, trajectory_score=trajectory_score)
    env.reset()
    env.step(CODE)
    assert env.step(CODE)[1] == reward


def test_a_reply_without_code_runs_nothing():
    evaluator = Recorded()
    env = make(evaluator=evaluator)
    env.reset()
    observation, reward, terminated, _, info = env.step("What shall I do?")
    assert "one complete program in a ```python block" in observation
    assert (reward, terminated, info["status"]) == (0.0, False, "no_code")
    assert env.step("submit")[1:3] == (0.0, True)
    assert evaluator.seen == []


def test_a_missing_score_is_nan_with_a_reason():
    env = make(evaluator=Recorded(good(0.5), LOST))
    env.reset()
    env.step(CODE)
    env.step(CODE)
    _, reward, terminated, _, info = env.step("submit")
    assert math.isnan(reward)
    assert terminated
    assert (info["score"], info["error"]) == (None, "The sandbox broke.")


@pytest.mark.sandbox
def test_real_execution():
    env = make()
    env.reset()
    assert env.step(COPY_SAMPLE)[0].startswith("status: ok\nroc_auc: 0.5000\npercentile: ")
    observation, *_ = env.step("```python\nraise ValueError('no')\n```")
    assert observation.startswith("status: error")
    assert observation.endswith("ValueError: no")
    assert env.step("```python\nprint('hi')\n```")[0].startswith("status: no_submission")
    env.step(COPY_SAMPLE)
    env.close()


@pytest.mark.sandbox
def test_a_failed_turn_is_not_scored_on_the_file_of_an_earlier_one():
    env = make(max_turns=2)
    env.reset()
    env.step(COPY_SAMPLE)
    _, reward, _, _, info = env.step("```python\nprint('I write nothing')\n```")
    assert (reward, info["status"], info["score"]) == (0.0, "no_submission", None)
    env.close()


def test_competitions_are_drawn_under_the_seed():
    env, twin = gym.make(ID), gym.make(ID)
    drawn = [env.reset(seed=7)[1]["competition"]] + [env.reset()[1]["competition"] for _ in range(80)]
    assert drawn == [twin.reset(seed=7)[1]["competition"]] + [
        twin.reset()[1]["competition"] for _ in range(80)
    ]
    train = {name for name in bundled_names() if load_competition(name).split == "train"}
    assert set(drawn) == train


def test_competitions_of_another_folder(tmp_path):
    write_folder(tmp_path / "one")
    heldout = write_folder(tmp_path / "two") / "competition.yaml"
    heldout.write_text(heldout.read_text() + "split: heldout\n")
    env = gym.make(ID, data_root=str(tmp_path))
    assert {env.reset(seed=seed)[1]["competition"] for seed in range(10)} == {"one"}
    assert gym.make(ID, data_root=str(tmp_path), competition="two").reset()[1]["competition"] == "two"


def test_options_hold_for_one_episode():
    usual, special = Recorded(good(0.1)), Recorded(good(0.9))
    env = make(evaluator=usual, max_turns=1)
    options = {"evaluator": special, "group": 3, "competition": "digits"}
    assert env.reset(options=options)[1]["competition"] == "digits"
    assert env.step(CODE)[1] == 0.9
    assert options == {"evaluator": special, "group": 3, "competition": "digits"}
    assert env.reset()[1]["competition"] == "breast-cancer"
    assert env.step(CODE)[1] == 0.1
    assert [solution.competition.name for solution in special.seen + usual.seen] == [
        "digits",
        "breast-cancer",
    ]


def test_bad_arguments_say_what_is_wrong(tmp_path):
    with pytest.raises(CompetitionError, match="Did you mean 'digits'"):
        gym.make(ID, competition="digit")
    with pytest.raises(ConfigError, match="max_turns must be at least 1"):
        make(max_turns=0)
    with pytest.raises(ConfigError, match="trajectory_score must be"):
        make(trajectory_score="last")
    with pytest.raises(ConfigError, match="half must be"):
        make(half="test")
    with pytest.raises(ConfigError, match="render_mode must be"):
        AutoResearchEnv(render_mode="human")
    with pytest.raises(ConfigError, match="no competition of the train split"):
        gym.make(ID, data_root=str(tmp_path))
    with pytest.raises(ConfigError, match="Unknown reset option 'sed': choose among"):
        make().reset(options={"sed": 1})
    with pytest.raises(CompetitionError, match="Unknown competition"):
        make().reset(options={"competition": "titanic"})


@pytest.mark.parametrize("action", [7, None, b"submit", "x" * 1_000_001, "\ud800"], ids=str)
def test_what_is_no_text_is_no_action(action):
    env = AutoResearchEnv("digits")
    env.reset()
    with pytest.raises(ConfigError, match="An action is a text"):
        env.step(action)


def test_calls_out_of_order_raise():
    env = AutoResearchEnv("digits", evaluator=Recorded(), max_turns=1, render_mode="ansi")
    for call in (lambda: env.step("submit"), env.render):
        with pytest.raises(ResetNeeded, match="No episode has begun"):
            call()
    env.reset()
    env.step("hm")
    with pytest.raises(ResetNeeded, match="The episode is over"):
        env.step("hm")


def test_rendering_shows_the_episode_so_far():
    env = make(evaluator=Recorded(good(0.25)), max_turns=2, render_mode="ansi")
    task, _ = env.reset()
    assert env.render() == task
    env.step(CODE)
    assert env.render() == "\n".join(
        [
            task,
            "----- reply 1 -----",
            CODE,
            "----- outcome 1 -----",
            "status: ok\nroc_auc: 0.9000\npercentile: 0.25",
        ]
    )
    env.step("submit")
    assert env.render().endswith("----- score: 0.25 -----")
    silent = make()
    silent.reset()
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert silent.unwrapped.render() is None


class Locked(Recorded):
    """An evaluator that can be neither copied nor pickled, like most that hold processes."""

    def __init__(self, *evaluations) -> None:
        super().__init__(*evaluations)
        self.lock = threading.Lock()


def test_spec_round_trip_and_an_evaluator_that_cannot_be_copied():
    spec = EnvSpec.from_json(make(max_turns=2).spec.to_json())
    assert gym.make(spec).unwrapped.reset()[1]["competition"] == "breast-cancer"
    env = make(evaluator=Locked(good(0.5)), max_turns=1)
    env.reset()
    assert env.step(CODE)[1] == 0.5


@pytest.mark.sandbox
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_where_the_original_stood(clone):
    env = make(max_turns=2)
    env.reset(seed=1)
    env.step(COPY_SAMPLE)
    twin = clone(env)
    reward = env.step("submit")[1]
    assert twin.step("submit")[1] == reward > 0
    assert twin.reset()[0] == env.reset()[0]
    env.close()
    twin.close()


def test_it_can_be_made_and_played_in_many_threads():
    def play(number):
        env = make(evaluator=Recorded(good(number / 10)), max_turns=1)
        env.reset(seed=number)
        return env.step(CODE)[1]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(10))) == [number / 10 for number in range(10)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasiums_own_vector_environments_take_it(mode):
    options = {"shared_memory": False} if mode == "async" else {}
    envs = gym.make_vec(ID, num_envs=2, vectorization_mode=mode, vector_kwargs=options, max_turns=1)
    tasks, _ = envs.reset(seed=[0, 1])
    assert all(task.startswith("# ") for task in tasks)
    observations, rewards, terminated, truncated, _ = envs.step(("submit", "hm"))
    assert observations[0].startswith("status: submitted")
    assert observations[1].startswith("status: no_code")
    assert rewards.tolist() == [0.0, 0.0]
    assert terminated.tolist() == [True, True]
    assert truncated.tolist() == [False, False]
    envs.close()


ACTIONS = ["submit", CODE, "request_info", "request_info: data_structure", "```request_info\nmetadata\n```"]
ANY_REPLY = st.one_of(st.text(), st.text().map("```python\n{}\n```".format), st.sampled_from(ACTIONS))
ANY_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.sampled_from(["percentile", "graded"]),
        "feedback_score": st.sampled_from(["percentile+raw", "raw", "none"]),
        "trajectory_score": st.sampled_from(["final", "best"]),
        "observation_limit": st.integers(64, 200),
        "overview_limit": st.integers(64, 200),
    },
)
ANY_OUTCOME = st.builds(
    Evaluation,
    st.builds(Outcome, st.sampled_from(["ok", "error", "timeout", "oom"]), st.text(), st.text()),
    st.sampled_from([None, Grade("ok", score=-1e300, percentile=0.0), Grade("bad_ids", message="No.")]),
)


@settings(max_examples=1000)
@given(
    st.lists(st.tuples(ANY_REPLY, ANY_OUTCOME), min_size=4, max_size=4), ANY_OPTIONS, st.integers(0, 2**32)
)
def test_random_replies_never_raise_and_stay_in_the_spaces(steps, options, seed):
    env = AutoResearchEnv(evaluator=Recorded(*[outcome for _, outcome in steps]), **options)
    observation, info = env.reset(seed=seed)
    assert len(observation) <= options.get("overview_limit", 10_000)
    terminated, rewards = False, []
    for reply, _ in steps:
        if not terminated:
            assert observation in env.observation_space
            observation, reward, terminated, truncated, info = env.step(reply)
            rewards.append(reward)
            assert len(observation) <= options.get("observation_limit", 10_000)
            assert list(info) == KEYS
            assert truncated is False
    assert observation in env.observation_space
    assert terminated
    assert rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert 0.0 <= rewards[-1] <= 1.0


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, "needs data_root"), ({"data_root": "x"}, "x has no competition")]
)
def test_dsbench_says_what_it_lacks(settings, expected):
    with pytest.raises(ConfigError, match=expected):
        gym.make("wmrl/DSBench-v0", **settings)
