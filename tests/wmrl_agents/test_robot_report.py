"""What a report shows of a robot: known pixels, known numbers, and nothing that the page's policy forbids."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.dots import dots, observe_picture, policy
from tests.wmrl_agents.test_report import Page
from wmrl_agents import GRPOConfig
from wmrl_agents.cli import main
from wmrl_agents.evaluate_robots import summarise_robots
from wmrl_agents.report import write_report
from wmrl_agents.report.robots import draw_strip, robot_page, save_episode
from wmrl_agents.runs import create_run
from wmrl_envs.errors import ConfigError

ABOUT = {"instruction": "go <b>right</b>", "init_state": 3, "success": True, "actions": 20}
FRAMES = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 24, 3), np.uint8)
BLUE, GREY = (47, 111, 179), (226, 230, 236)


def test_a_strip_has_frames_and_bars_of_their_progress():
    values = [0.0, 0.25, 0.5, 1.0]
    strip = np.asarray(draw_strip(FRAMES[:4], values))
    assert strip.shape == (32 + 48 + 14 + 4, 4 * 26 - 2, 3)
    for number, value in enumerate(values):
        left = 26 * number
        np.testing.assert_array_equal(strip[:32, left : left + 24], FRAMES[number])
        column = [tuple(pixel) for pixel in strip[34:82, left + 5].tolist()]
        assert column == [GREY] * round(48 * (1 - value)) + [BLUE] * round(48 * value)


def test_without_progress_there_are_frames_alone():
    assert draw_strip(FRAMES[:8], None).size == (8 * 26 - 2, 32)


def test_an_episode_is_written_and_read_back(tmp_path):
    gif, strip, about = save_episode(tmp_path / "episodes", "one", FRAMES, ABOUT, [0.5] * 8)
    with Image.open(gif) as moving:
        assert (moving.n_frames, moving.size) == (20, (24, 32))
        moving.seek(19)
        assert np.abs(np.asarray(moving.convert("RGB")).astype(int) - 19).max() <= 2
    assert json.loads(about.read_text())["progress"] == [0.5] * 8
    page = robot_page(tmp_path)
    assert page.rows == ()
    assert page.strips[0].caption == "go <b>right</b>, initial state 3: the goal held after 20 actions"
    assert page.strips[0].source.startswith("data:image/png;base64,")
    strip.unlink()
    with pytest.raises(ConfigError, match="are not a recorded episode"):
        robot_page(tmp_path)
    about.write_text("{")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        robot_page(tmp_path)


def test_the_page_of_a_run_shows_table_and_strip(tmp_path):
    create_run(tmp_path, GRPOConfig(task_suite="libero_10"))
    tries = [(0, True), (0, False), (16, True), (16, True)]
    rows = [{"task": 0, "init_state": s, "success": ok, "actions_hash": str(s)} for s, ok in tries]
    summary = {"repeats": 2, **summarise_robots(rows, range(16))}
    (tmp_path / "robots-evaluation-after.json").write_text(json.dumps(summary))
    page = robot_page(tmp_path)
    assert dict(page.rows) == {
        "in-domain": ("–", "50.0", "–", "100.0", "–", "0.0"),
        "out of distribution": ("–", "100.0", "–", "100.0", "–", "100.0"),
        "overall": ("–", "75.0", "–", "100.0", "–", "50.0"),
    }
    text = Page(write_report(tmp_path)).source
    assert "img-src" not in text
    assert "<td>75.0</td>" in text
    save_episode(tmp_path / "episodes", "one", FRAMES, ABOUT, None)
    text = Page(write_report(tmp_path)).source
    assert "; img-src data:" in text
    assert "go &lt;b&gt;right&lt;/b&gt;" in text
    assert "<b>right" not in text


def test_the_command_records_an_episode(tmp_path, monkeypatch, capsys):
    from wmrl_agents.grpo import robots
    from wmrl_rewards import ProgressModel, ProgressRollout

    def load_suite(config):
        assert (config.observations, config.init_states, config.image_size) == ("both", ("2",), 64)
        return replace(dots(tasks=(1,)), observe=observe_picture)

    monkeypatch.setattr(robots, "load_suite", load_suite)
    policy().save(tmp_path / "policy")
    line = np.linspace(0, 1, 12, dtype=np.float32)[:, None].repeat(3, axis=1)
    model = ProgressModel(["go right"], observed="states", state_size=3)
    model.fit([ProgressRollout(line, "go right", True)], steps=5)
    model.save(tmp_path / "progress")
    options = ["--task", "1", "--init-state", "2", "--env-seed", "4", "--size", "64"]
    options += ["--progress", str(tmp_path / "progress"), "--out", str(tmp_path / "out")]
    assert main(["libero", "show", str(tmp_path / "policy"), *options]) == 0
    about = json.loads((tmp_path / "out" / "task-1-state-02-seed-4.json").read_text())
    assert len(about["progress"]) == 8
    assert (about["task"], about["init_state"], about["env_seed"]) == (1, 2, 4)
    assert f"after {about['actions']} actions" in capsys.readouterr().out
    with Image.open(tmp_path / "out" / "task-1-state-02-seed-4.gif") as moving:
        assert moving.size == (32, 8)
