"""Pictures of demonstrations are drawn once, by someone else and, where it is installed, by MuJoCo."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError, MissingExtraError, SimulatorError
from wmrl_envs.libero import pictures as module
from wmrl_envs.libero.demonstrations import replay
from wmrl_envs.libero.pictures import PictureCache, PictureDrawer, drawing_versions
from wmrl_envs.libero.views import PictureView

from .installed import needs_libero, played
from .test_demonstrations import made_up

VIEW = PictureView(image_size=4)
HERE = {"libero": "1", "mujoco": "3.17.0"}


class Drawer:
    """Draws pictures that say which episode, view and moment they are of, and notes what it drew."""

    def __init__(self):
        self.drawn = []

    def __call__(self, demonstration, view, moments):
        self.drawn.append((demonstration.init_state, moments.tolist()))
        return self.picture(demonstration, view, moments)

    @staticmethod
    def picture(demonstration, view, moments):
        side = view.image_size
        shown = np.zeros((len(moments), side, side, 3), np.uint8)
        shown[..., 0] = demonstration.init_state
        shown[..., 1] = np.asarray(moments)[:, None, None]
        shown[..., 2] = len(view.camera)
        return shown


@pytest.fixture
def drawer():
    return Drawer()


def cache(tmp_path, drawer, view=VIEW, versions=HERE):
    return PictureCache(tmp_path / "pictures", view, drawer, versions)


def missing(kept, demonstration, moments):
    """How many pictures of these moments would have to be drawn."""
    return len(np.setdiff1d(moments, kept._kept(demonstration)[0]))


def files(tmp_path):
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())


def test_what_was_drawn_is_not_drawn_again(tmp_path, drawer):
    episode = made_up(init_state=7)
    kept = cache(tmp_path, drawer)
    assert missing(kept, episode, [0, 2, 5]) == 3
    first = kept.pictures(episode, [0, 2, 5])
    assert np.array_equal(first, drawer.picture(episode, VIEW, [0, 2, 5]))
    assert files(tmp_path) == ["pictures/agentview-4-vertical_flip/task-3/init-07-seed-0.npz"]
    again = cache(tmp_path, drawer)
    assert missing(again, episode, [2, 5]) == 0
    assert np.array_equal(again.pictures(episode, [5, 0]), first[[2, 0]])
    assert drawer.drawn == [(7, [0, 2, 5])]


def test_only_what_is_not_there_is_drawn(tmp_path, drawer):
    episode = made_up()
    kept = cache(tmp_path, drawer)
    kept.pictures(episode, [0, 4])
    shown = kept.pictures(episode, [4, 1, 3, 1])
    assert shown[:, 0, 0, 1].tolist() == [4, 1, 3, 1]
    assert kept.pictures(episode, range(6))[:, 0, 0, 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert [moments for _, moments in drawer.drawn] == [[0, 4], [1, 3], [2, 5]]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4))
def test_any_moments_in_any_order_are_what_was_asked_for_and_none_is_drawn_twice(tmp_path_factory, asked):
    drawer, episode = Drawer(), made_up()
    folder = tmp_path_factory.mktemp("any")
    for moments in asked:
        shown = cache(folder, drawer).pictures(episode, moments)
        assert np.array_equal(shown, drawer.picture(episode, VIEW, moments))
    drawn = [moment for _, moments in drawer.drawn for moment in moments]
    assert sorted(drawn) == sorted({moment for moments in asked for moment in moments})


EPISODE = made_up()
OTHERS = {
    "other actions": {"actions": EPISODE.actions * 0.5},
    "another end": {"final_state": EPISODE.final_state + 1e-12},
    "recorded with another version": {"versions": {"mujoco": "3.18.0"}},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_pictures_of_another_episode_in_its_place_are_drawn_anew(tmp_path, drawer, changes):
    kept = cache(tmp_path, drawer)
    kept.pictures(EPISODE, [0])
    other = dataclasses.replace(EPISODE, **changes)
    assert kept.path(other) == kept.path(EPISODE)
    kept.pictures(other, [0])
    assert len(drawer.drawn) == 2
    assert missing(kept, other, [0]) == 0
    assert missing(kept, EPISODE, [0]) == 1


def test_each_view_has_pictures_of_its_own(tmp_path, drawer):
    views = [
        VIEW,
        PictureView("robot0_eye_in_hand", 4),
        PictureView(image_size=8),
        PictureView(image_size=4, orientation="rotate_180"),
    ]
    for view in views:
        assert cache(tmp_path, drawer, view).pictures(EPISODE, [1]).shape[1] == view.image_size
    assert len(drawer.drawn) == len(files(tmp_path)) == 4
    for view in views:
        cache(tmp_path, drawer, view).pictures(EPISODE, [1])
    assert len(drawer.drawn) == 4


def test_other_versions_draw_anew_and_nobody_who_could_draw_takes_what_is_there(tmp_path, drawer):
    cache(tmp_path, drawer).pictures(EPISODE, [0])
    assert missing(cache(tmp_path, drawer, versions=None), EPISODE, [0]) == 0
    newer = cache(tmp_path, drawer, versions={**HERE, "mujoco": "4"})
    assert missing(newer, EPISODE, [0]) == 1
    newer.pictures(EPISODE, [0])
    assert missing(cache(tmp_path, drawer), EPISODE, [0]) == 1


def test_an_interruption_loses_the_episode_that_was_being_drawn_and_no_other(tmp_path, drawer):
    episodes = [made_up(init_state=number) for number in range(3)]

    def interrupted(demonstration, view, moments):
        if demonstration.init_state == 1:
            raise KeyboardInterrupt
        return drawer(demonstration, view, moments)

    kept = cache(tmp_path, interrupted)
    kept.pictures(episodes[0], [0, 3])
    with pytest.raises(KeyboardInterrupt):
        kept.pictures(episodes[1], [0, 3])
    assert files(tmp_path) == ["pictures/agentview-4-vertical_flip/task-3/init-00-seed-0.npz"]
    for episode in episodes:
        cache(tmp_path, drawer).pictures(episode, [0, 3])
    assert [state for state, _ in drawer.drawn] == [0, 1, 2]


def test_a_write_that_fails_leaves_what_was_there(tmp_path, drawer, monkeypatch):
    kept = cache(tmp_path, drawer)
    kept.pictures(EPISODE, [0])
    before = kept.path(EPISODE).read_bytes()

    def full(file, **content):
        file.write(b"PK")
        raise OSError("No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(np, "savez_compressed", full)
        with pytest.raises(OSError, match="No space left"):
            kept.pictures(EPISODE, [1])
    assert kept.path(EPISODE).read_bytes() == before
    assert len(files(tmp_path)) == 1


def test_what_is_no_file_of_pictures_is_drawn_anew(tmp_path, drawer):
    kept = cache(tmp_path, drawer)
    wanted = kept.pictures(EPISODE, [0, 3])
    path = kept.path(EPISODE)
    whole = path.read_bytes()
    with np.load(path) as arrays:
        content = dict(arrays)
    broken = [
        whole[: len(whole) // 2],
        b"",
        {**content, "pictures": content["pictures"][:1]},
        {**content, "pictures": content["pictures"].astype(np.float32)},
        {**content, "moments": content["moments"][::-1]},
        {**content, "moments": np.int64(3)},
        {**content, "about": np.array("[")},
        {**content, "about": np.array(json.dumps([1]))},
        {"pictures": content["pictures"]},
    ]
    for number, one in enumerate(broken, start=2):
        if isinstance(one, bytes):
            path.write_bytes(one)
        else:
            np.savez(path, **one)
        assert missing(kept, EPISODE, [0, 3]) == 2
        assert np.array_equal(kept.pictures(EPISODE, [0, 3]), wanted)
        assert len(drawer.drawn) == number


@pytest.mark.parametrize("moments", [[], [-1], [0, 6]])
def test_moments_that_an_episode_lacks_have_their_sentence(tmp_path, drawer, moments):
    with pytest.raises(
        ConfigError, match=r"Pictures of task-3/init-07-seed-0.npz are of moments from 0 to 5"
    ):
        cache(tmp_path, drawer).pictures(EPISODE, moments)


@pytest.mark.parametrize(
    "wrong", [{"camera": "x"}, {"image_size": 0}, {"image_size": 9999}, {"orientation": "up"}]
)
def test_a_view_that_is_none_has_its_sentence(wrong):
    with pytest.raises(ConfigError, match="must be"):
        PictureView(**wrong)


def test_without_libero_no_version_is_known(monkeypatch):
    class Missing:
        def versions(self):
            raise MissingExtraError("libero", "libero")

    monkeypatch.setattr(module, "LiberoEnv", Missing)
    assert drawing_versions() is None


@needs_libero
@pytest.mark.slow
def test_pictures_are_those_of_a_replay_that_draws_everything(tmp_path):
    episodes = [played(init_state=0, steps=6), played(init_state=3, steps=6)]
    view, moments, drawer = PictureView(image_size=32), [0, 2, 5, 6], PictureDrawer()
    kept = PictureCache(tmp_path, view, drawer, drawing_versions())
    for episode in episodes:
        kept.pictures(episode, moments)
    shown = replay(episodes[1], observations="images", image_size=32)
    everything = [one["agentview_image"] for one in shown]
    assert np.array_equal(kept.pictures(episodes[1], moments), np.stack(everything)[moments])
    assert len({picture.tobytes() for picture in everything}) == len(everything) == 7
    changed = dataclasses.replace(episodes[0], final_state=episodes[0].final_state + 1e-9)
    with pytest.raises(SimulatorError, match="came to another state"):
        kept.pictures(changed, moments)
    drawer.close()
