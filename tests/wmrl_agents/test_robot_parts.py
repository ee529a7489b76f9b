"""A run shows its models what they were trained on, or says in one sentence what has to be another way."""

import numpy as np
import pytest

from tests.dots import RIGHT, codec
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.robot_parts import load_progress_model, load_robot_policy
from wmrl_agents.grpo.robots import load_suite
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.views import PictureView
from wmrl_rewards import ProgressModel, ProgressRollout

STATE = {"state_size": 3}
PICTURES = {"pictures": True, "view": PictureView(image_size=64)}
SIZE = {"image_size": 64}


def config(**changes):
    return GRPOConfig(task_suite="libero_10", libero_tasks=("0",), **changes)


def policy(tmp_path, **settings):
    SmallVLA([RIGHT], codec(), hidden=8, **settings).save(tmp_path / "policy")
    return tmp_path / "policy"


def progress(tmp_path, **settings):
    model = ProgressModel([RIGHT], hidden=8, **settings)
    pictures = np.zeros((4, 64, 64, 3), np.uint8)
    frames = pictures if settings["observed"] == "images" else np.zeros((4, 3), np.float32)
    model.fit([ProgressRollout(frames, RIGHT, True)], steps=1)
    model.save(tmp_path / "progress")
    return str(tmp_path / "progress")


@pytest.mark.parametrize(
    ("made", "run"),
    [
        (STATE, {}),
        (STATE, {"observations": "both"}),
        (PICTURES, {"observations": "images", **SIZE}),
        (PICTURES, {"observations": "both", **SIZE}),
        (STATE | PICTURES, {"observations": "both", **SIZE}),
        ({"pictures": True}, {"observations": "images", "camera": "sideview"}),
    ],
)
def test_a_policy_that_is_shown_what_it_was_trained_on_acts(tmp_path, made, run):
    loaded = load_robot_policy(config(**run), policy(tmp_path, **made))
    assert loaded.view == made.get("view")


@pytest.mark.parametrize(
    ("made", "run", "sentence"),
    [
        (STATE, {"observations": "images"}, "reads states, .* is images: say --observations state or both"),
        (PICTURES, {}, "reads pictures, .* is state: say --observations images or both"),
        (STATE | PICTURES, {}, "reads states and pictures, .* is state: say --observations both"),
        (PICTURES, {"observations": "images"}, "with image_size 64, not 128: say --image-size 64"),
        (
            PICTURES,
            {"observations": "both", "camera": "birdview", **SIZE},
            "with camera agentview, not birdview: say --camera agentview",
        ),
        (
            {"pictures": True, "view": PictureView(image_size=64, orientation="rotate_180")},
            {"observations": "images", **SIZE},
            "with orientation rotate_180, not vertical_flip: train another one",
        ),
    ],
)
def test_a_policy_that_would_see_something_else_has_its_sentence(tmp_path, made, run, sentence):
    with pytest.raises(ConfigError, match=rf"The policy in '.*policy' .*{sentence}\.$"):
        load_robot_policy(config(**run), policy(tmp_path, **made))


def test_a_model_of_progress_is_held_to_the_same(tmp_path):
    by_states = config(world_model=progress(tmp_path / "a", observed="states", state_size=3))
    assert load_progress_model(by_states).observed == "states"
    with pytest.raises(ConfigError, match=r"The model of progress in .* say --observations state or both\.$"):
        load_progress_model(by_states.replace(observations="images"))
    view = PictureView("robot0_eye_in_hand", 64)
    by_pictures = config(world_model=progress(tmp_path / "b", observed="images", view=view))
    fitting = by_pictures.replace(observations="images", camera="robot0_eye_in_hand", image_size=64)
    assert load_progress_model(fitting).view == view
    with pytest.raises(ConfigError, match=r"say --observations images or both\.$"):
        load_progress_model(by_pictures)
    with pytest.raises(ConfigError, match=r"with camera robot0_eye_in_hand, not agentview"):
        load_progress_model(fitting.replace(camera="agentview"))
    for name in ("noise", "constant"):
        load_progress_model(config(world_model=name))


def test_the_environment_of_a_run_has_its_camera_and_size():
    suite = load_suite(config(observations="images", camera="frontview", image_size=24))
    env = suite.make_env(0)
    assert env.observation_space["frontview_image"].shape == (24, 24, 3)
    assert env.unwrapped.orientation == "vertical_flip"
    picture = np.zeros((24, 24, 3), np.uint8)
    assert suite.observe({"frontview_image": picture}).image is picture


def test_pictures_of_another_size_are_refused_by_who_was_trained_on_one(tmp_path):
    from wmrl_agents.policies.vla.records import Observation
    from wmrl_rewards import PredictionRequest

    small = np.zeros((4, 32, 32, 3), np.uint8)
    with pytest.raises(
        ConfigError, match="trained on pictures of 64 x 64 pixels, and is shown one of 32 x 32"
    ):
        SmallVLA([RIGHT], codec(), **PICTURES).begin(RIGHT, Observation(image=small[0]))
    model = ProgressModel.load(progress(tmp_path, observed="images", view=PICTURES["view"]))
    [prediction] = model.predict([PredictionRequest(RIGHT, frames=small)])
    assert prediction.score is None
    assert "trained on pictures of 64 x 64 pixels, and is shown some of 32 x 32" in prediction.error


def test_a_view_belongs_to_who_looks_at_pictures():
    with pytest.raises(ConfigError, match="looks at no pictures"):
        SmallVLA([RIGHT], codec(), state_size=3, view=PictureView())
    with pytest.raises(ConfigError, match="reads states has no view"):
        ProgressModel([RIGHT], observed="states", state_size=3, view=PictureView())
