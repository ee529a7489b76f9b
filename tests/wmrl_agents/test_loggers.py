"""Names of what is logged, and what leaves the machine."""

import re
from pathlib import Path

import pytest

from tests.wmrl_agents.test_audit import AUDITED, trained
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.loggers import make_loggers, numbers_in, sent_settings
from wmrl_agents.runs import read_metrics
from wmrl_envs.errors import ConfigError

TABLE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_table_names_what_is_logged_and_nothing_else(tmp_path):
    trained(tmp_path / "run", updates_per_batch=2)
    documented = re.findall(r"^\| `(\w+)` \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(documented) == len(set(documented))
    for step in read_metrics(tmp_path / "run"):
        assert sorted(step) == sorted(documented)


def test_only_numbers_are_sent():
    metrics = {
        "step": 7,
        "score": 0.25,
        "eta2": None,
        "fitted": False,
        "executions": 3,
        "failures": {"timeout": 2},
        "infrastructure": {"no space left on /home/somebody": 2, "other": 1},
        "note": "a prompt",
    }
    assert numbers_in(metrics) == {
        "score": 0.25,
        "fitted": 0.0,
        "executions": 3.0,
        "failures/timeout": 2.0,
        "infrastructure": 3.0,
    }


def test_no_name_path_or_address_among_the_settings_is_sent():
    config = GRPOConfig(policy="/home/somebody/model", world_model="http://10.0.0.1/v1#secret")
    sent = sent_settings(config)
    assert sent["learning_rate"] == config.learning_rate
    assert sent["reward_source"] == "wmrl"
    words = {value for value in sent.values() if isinstance(value, str)}
    assert words == {"wmrl", "sum", "regression", "float32", "final", "execute"}


@pytest.mark.parametrize(
    ("settings", "library", "sentence"),
    [
        ({"tensorboard": True}, "torch.utils.tensorboard", r"pip install 'wmrl\[tensorboard\]'"),
        ({"wandb": "offline"}, "wandb", r"pip install 'wmrl\[wandb\]'"),
    ],
)
def test_a_logger_that_is_not_installed_is_named(tmp_path, monkeypatch, settings, library, sentence):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(ConfigError, match=sentence):
        make_loggers(AUDITED.replace(**settings), tmp_path, 0)


def scalars(run_dir):
    """What TensorBoard shows of a run: {name: [(step, value)]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_numbers_of_the_log_after_a_resume_too(tmp_path):
    trained(tmp_path / "run", steps=4, tensorboard=True)
    trained(tmp_path / "run", tensorboard=True)
    shown = scalars(tmp_path / "run")
    logged = read_metrics(tmp_path / "run")
    for name in ("score", "rho", "grad_norm", "audit_groups", "seconds_step"):
        assert [step for step, _ in shown[name]] == list(range(6))
        assert [value for _, value in shown[name]] == pytest.approx([step[name] for step in logged], rel=1e-6)


def test_wandb_keeps_numbers_offline_and_no_text(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    trained(tmp_path / "run", steps=2, wandb="offline")
    files = [path for path in (tmp_path / "run" / "wandb").rglob("*") if path.is_file()]
    (record,) = [path for path in files if path.suffix == ".wandb"]
    kept = record.read_bytes()
    assert b"grad_norm" in kept
    for text in (
        b"tokens = [",
        b"DATA_DIR",
        b"machine-learning engineer",
        str(tmp_path).encode() + b"/run/c",
    ):
        assert text not in kept
    assert not [
        path for path in files if path.suffix == ".py" or path.name.endswith((".patch", "output.log"))
    ]
