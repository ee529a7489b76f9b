"""What is learned from demonstrations of LIBERO, through the command, on episodes that are made up."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from wmrl_agents.cli import main
from wmrl_agents.libero_learning import demonstrated, progress_rollouts
from wmrl_agents.policies.vla.libero_view import libero_states
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.errors import MissingExtraError
from wmrl_envs.libero import demonstrations, env, pictures
from wmrl_envs.libero.views import PictureView
from wmrl_rewards import ProgressModel


def episode(seed, task=0, success=True, steps=20):
    generator = np.random.default_rng(seed)
    return demonstrations.Demonstration(
        task=task,
        init_state=seed,
        env_seed=0,
        noise=0.0,
        success=success,
        versions={"mujoco": "made up"},
        actions=generator.uniform(-1.2, 1.2, (steps, 7)),
        intended=generator.uniform(-1.2, 1.2, (steps, 7)),
        robot=generator.normal(size=(steps + 1, 16)).astype(np.float32),
        objects=generator.normal(size=(steps + 1, 8, 7)).astype(np.float32),
        joints=generator.normal(size=(steps + 1, 3)).astype(np.float32),
        final_state=np.zeros(4),
    )


@pytest.fixture
def folder(tmp_path):
    for seed in range(4):
        demonstrations.save_demonstration(tmp_path / "demos", episode(seed, success=seed != 3))
    return tmp_path / "demos"


def run(*arguments):
    return main(["libero", *map(str, arguments)])


SHORT = ("--steps", 4, "--batch-size", 8, "--hidden", 16, "--codes", 8, "--report-every", 2)


def test_successes_become_examples():
    episodes = [episode(0), episode(1, success=False), episode(2)]
    found = demonstrated(episodes)
    assert len(found) == 2
    assert found[0].actions == pytest.approx(np.clip(episodes[0].intended, -1, 1))
    assert found[1].task == "put both the alphabet soup and the tomato sauce in the basket"
    expected = libero_states(episodes[2].robot, episodes[2].objects, episodes[2].joints)
    assert np.array_equal(found[1].states, expected)


def test_successes_that_stop_on_their_way_keep_their_progress():
    whole, cut, failed = progress_rollouts([episode(0), episode(1, success=False)])
    assert (whole.success, cut.success, failed.success) == (True, False, False)
    assert whole.labels is None
    assert failed.labels is None
    labels = np.array(cut.labels)
    stop = int(np.argmax(labels == labels[-1]))
    assert labels == pytest.approx(np.minimum(np.arange(21), stop) / 20)
    assert np.array_equal(cut.frames[: stop + 1], whole.frames[: stop + 1])
    assert (cut.frames[stop:] == whole.frames[stop]).all()


def test_a_policy_is_trained_and_gone_on_with(folder, tmp_path, capsys):
    arguments = (
        "sft",
        "--demos",
        folder,
        "--tasks",
        "0",
        "--init-states",
        "0,1,2",
        "--run-dir",
        tmp_path / "run",
    )
    assert run(*arguments, *SHORT) == 0
    said = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["step"] for line in said[:-1]] == [2, 4]
    policy = SmallVLA.load(tmp_path / "run" / "checkpoints" / "step-4")
    assert policy.state_size == 99
    assert run(*arguments, *SHORT) == 0
    assert "Going on from step 4 of 4." in capsys.readouterr().out


def test_a_model_of_progress_is_trained(folder, tmp_path, capsys):
    assert (
        run(
            "progress",
            "--demos",
            folder,
            "--tasks",
            "0",
            "--init-states",
            "0,1,3",
            "--steps",
            2,
            "--out",
            tmp_path / "model",
        )
        == 0
    )
    assert "The model of progress is in" in capsys.readouterr().out
    model = ProgressModel.load(tmp_path / "model")
    assert (model.fitted, model.state_size) == (True, 99)


def test_no_episode_of_the_initial_states_is_one_sentence(folder, tmp_path, capsys):
    assert run("sft", "--demos", folder, "--init-states", "30", "--run-dir", tmp_path / "run") == 2
    assert "begins at the initial states 30" in capsys.readouterr().err


def test_listing_the_commands_loads_no_torch():
    program = (
        "import sys; from wmrl_agents.libero import _parser; _parser(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_episodes_need_no_class_of_their_own():
    one = episode(0)
    plain = SimpleNamespace(
        **{
            name: getattr(one, name)
            for name in ("instruction", "success", "intended", "robot", "objects", "joints")
        }
    )
    assert len(demonstrated([plain])) == 1


class Drawer:
    """Stands where MuJoCo draws: pictures that say their episode and moment, and a note of what was drawn."""

    drawn: list

    def __call__(self, demonstration, view, moments):
        self.drawn.append((demonstration.init_state, moments.tolist()))
        shown = np.zeros((len(moments), view.image_size, view.image_size, 3), np.uint8)
        shown[..., 0] = demonstration.init_state
        shown[..., 1] = moments[:, None, None]
        return shown

    def close(self):
        pass


@pytest.fixture
def drawn(monkeypatch):
    """What has been drawn: initial states, and moments of them."""
    monkeypatch.setattr(Drawer, "drawn", [], raising=False)
    monkeypatch.setattr(pictures, "PictureDrawer", Drawer)
    monkeypatch.setattr(pictures, "drawing_versions", lambda: {"mujoco": "made up"})
    return Drawer.drawn


VIEW = ("--image-size", 16, "--camera", "robot0_eye_in_hand")


def sft(folder, run_dir, *arguments):
    return run("sft", "--demos", folder, "--tasks", 0, "--run-dir", run_dir, *SHORT, *arguments)


@pytest.mark.parametrize(("kind", "state_size"), [("images", None), ("both", 99)])
def test_a_policy_is_trained_on_pictures_that_are_drawn_once(
    folder, tmp_path, drawn, capsys, kind, state_size
):
    asked = ("--observations", kind, *VIEW)
    assert sft(folder, tmp_path / "run", *asked) == 0
    assert drawn == [(state, [0, 4, 8, 12, 16]) for state in (0, 1, 2)]
    out = capsys.readouterr().out
    assert "Drew 5 pictures of task-0/init-01-seed-0.npz in 0 s: episode 2 of 3." in out
    policy = SmallVLA.load(tmp_path / "run" / "checkpoints" / "step-4")
    assert (policy.state_size, policy.pictures) == (state_size, True)
    assert policy.view == PictureView("robot0_eye_in_hand", 16, "vertical_flip")
    # A tenth of three episodes is none: 3 x 5 examples are learned from.
    assert json.loads((tmp_path / "run" / "sft.json").read_text())["examples"] == 15
    assert sft(folder, tmp_path / "run", *asked) == 0
    assert len(drawn) == 3
    assert "Going on from step 4 of 4." in capsys.readouterr().out


def test_pictures_go_with_the_step_before_which_they_were_seen():
    episodes = [episode(0), episode(1, success=False), episode(2, steps=9)]
    shown = [np.full((count, 2, 2, 3), number, np.uint8) for number, count in enumerate((5, 5, 3))]
    first, last = demonstrated(episodes, shown, every=4)
    assert (first.num_examples, last.num_examples) == (5, 3)
    assert (first.images[0, 0, 0, 0], last.images[0, 0, 0, 0]) == (0, 2)
    states = libero_states(episodes[2].robot, episodes[2].objects, episodes[2].joints)
    assert np.array_equal(last.states, states[[0, 4, 8]])
    assert len(last.actions) == 9
    assert demonstrated(episodes, shown, every=4, states=False)[0].states is None


def test_drawing_goes_on_where_it_was_interrupted(folder, tmp_path, drawn, monkeypatch):
    draw = Drawer.__call__

    def interrupted(self, demonstration, view, moments):
        if demonstration.init_state == 2:
            raise KeyboardInterrupt
        return draw(self, demonstration, view, moments)

    with monkeypatch.context() as changed:
        changed.setattr(Drawer, "__call__", interrupted)
        assert sft(folder, tmp_path / "run", "--observations", "images", *VIEW) != 0
    assert [state for state, _ in drawn] == [0, 1]
    assert sft(folder, tmp_path / "run", "--observations", "images", *VIEW) == 0
    assert [state for state, _ in drawn] == [0, 1, 2]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (("--observations", "images", "--image-size", 8), "view: "),
        (("--observations", "both", *VIEW), "observations: images -> both"),
        ((), "observations: images -> state"),
        (("--observations", "images", *VIEW, "--picture-every", 2), "examples: 15 -> 30"),
    ],
    ids=["another view", "states too", "states alone", "more pictures"],
)
def test_a_run_on_other_pictures_is_another_run(folder, tmp_path, drawn, capsys, other, sentence):
    assert sft(folder, tmp_path / "run", "--observations", "images", *VIEW) == 0
    capsys.readouterr()
    assert sft(folder, tmp_path / "run", *other) == 2
    said = capsys.readouterr().err
    assert "is a run with other settings" in said
    assert sentence in said


def test_a_model_of_progress_learns_from_pictures_as_it_will_be_shown(folder, tmp_path, drawn, capsys):
    arguments = ("progress", "--demos", folder, "--tasks", 0, "--steps", 2, "--out", tmp_path / "model")
    assert run(*arguments, "--observations", "images", *VIEW, "--pictures", tmp_path / "kept") == 0
    assert drawn == [(state, [0, 8, 16, 20]) for state in (0, 1, 2, 3)]
    assert f"Pictures of 4 episodes are in {tmp_path / 'kept'}." in capsys.readouterr().out
    model = ProgressModel.load(tmp_path / "model")
    assert (model.observed, model.view) == ("images", PictureView("robot0_eye_in_hand", 16))


def test_progress_in_pictures_is_that_of_their_moments():
    shown = [np.zeros((4, 2, 2, 3), np.uint8), np.ones((3, 2, 2, 3), np.uint8)]
    episodes = [episode(0, steps=20), episode(1, success=False, steps=16)]
    whole, cut, failed = progress_rollouts(episodes, pictures=shown, every=8)
    assert whole.labels == pytest.approx([0, 0.4, 0.8, 1])
    stop = int(np.argmax(np.array(cut.labels) == cut.labels[-1]))
    assert cut.labels == pytest.approx([0, 0.4, 0.8, 1][:stop] + [[0, 0.4, 0.8, 1][stop]] * (4 - stop))
    assert failed.labels is None
    assert failed.frames is shown[1]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("--picture-every", 0), "--picture-every must be at least 1, not 0."),
        (("--image-size", 0), "image_size must be a height and a width from 1"),
    ],
)
def test_wrong_numbers_have_their_sentence(folder, tmp_path, drawn, capsys, wrong, sentence):
    assert sft(folder, tmp_path / "run", "--observations", "images", *wrong) == 2
    assert sentence in capsys.readouterr().err
    assert drawn == []


def test_pictures_that_are_not_there_need_libero(folder, tmp_path, monkeypatch, capsys):
    def missing(assets, version):
        raise MissingExtraError("libero", "libero")

    monkeypatch.setattr(env, "load_package", missing)
    assert sft(folder, tmp_path / "run", "--observations", "images") == 2
    assert "pip install 'wmrl[libero]'" in capsys.readouterr().err
