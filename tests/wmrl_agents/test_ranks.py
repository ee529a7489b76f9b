"""Several processes make the same run as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.stubs import tiny_language_model
from tests.wmrl_agents import several_ranks
from tests.wmrl_agents.killed_run import parts
from wmrl_agents.cli import main
from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.grpo.learners import follow
from wmrl_agents.grpo.ranks import Ranks
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.runs import read_metrics
from wmrl_envs.errors import ConfigError

ROOT = Path(__file__).parents[2]


def launched(ranks, *arguments):
    """A command under torchrun, one thread for each rank."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "-m",
    ]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_with(ranks, kind, folder):
    done = launched(ranks, "tests.wmrl_agents.several_ranks", kind, folder)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.glob("ended-*")} == {f"ended-{rank}" for rank in range(1, ranks)}
    return folder


def numbers(folder):
    """All numbers of the log but times."""
    return [
        {name: value for name, value in step.items() if not name.startswith("seconds_")}
        for step in read_metrics(folder / "run")
    ]


def table(folder):
    return torch.load(latest_checkpoint(folder / "run").policy_dir / "table.pt", weights_only=True)


def test_a_run_is_the_same_on_two_processes(tmp_path):
    alone, several = tmp_path / "alone", tmp_path / "several"
    several_ranks.train(Ranks(), alone)
    several.mkdir()
    run_with(2, "run", several)
    difference = (table(several) - table(alone)).norm() / table(alone).norm()
    assert float(difference) < 1e-6
    found, expected = numbers(several), numbers(alone)
    assert len(found) == 4
    for step, other in zip(found, expected, strict=True):
        assert step.keys() == other.keys()
        for name, value in step.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[name], rel=1e-6, abs=1e-12), name
            else:
                assert value == other[name], name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_language_model(tmp_path_factory.mktemp("model") / "model")


def test_a_language_model_samples_and_learns_the_same_on_two_processes(tmp_path, model):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "model").symlink_to(model)
    several_ranks.gradient(Ranks(), folders[0])
    run_with(2, "gradient", folders[1])
    one, two = (torch.load(folder / "gradient.pt", weights_only=True) for folder in folders)
    assert two["tokens"] == one["tokens"]
    assert two["tokens after"] == one["tokens after"]
    assert two["statistics"]["tokens"] == one["statistics"]["tokens"]
    for name, value in one["statistics"].items():
        assert two["statistics"][name] == pytest.approx(value, rel=1e-5, abs=1e-4)
    found, expected = (
        torch.cat([gradient.reshape(-1) for gradient in part["gradient"]]) for part in (two, one)
    )
    assert float((found - expected).norm() / expected.norm()) < 1e-6
    for after, other in zip(two["log-probabilities after"], one["log-probabilities after"], strict=True):
        assert after == pytest.approx(other, abs=1e-4)


def test_where_rank_0_fails_the_others_end_in_order(tmp_path):
    done = launched(2, "tests.wmrl_agents.several_ranks", "failure", tmp_path)
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
    assert "RuntimeError" not in done.stderr
    assert (tmp_path / "ended-1").exists()


def test_the_group_is_left_even_where_the_others_are_gone_before_they_are_told(monkeypatch):
    """Else its threads are there when the process exits, which aborts it."""
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    distributed.init_process_group("gloo")

    class Deserted(Ranks):
        def tell(self, order):
            raise RuntimeError("Connection closed by peer")

    ranks = Deserted()
    ranks.size = 2
    with ranks:
        assert distributed.is_initialized()
    assert not distributed.is_initialized()


def test_who_is_told_to_end_first_loads_nothing():
    class Told(Ranks):
        def hear(self):
            return ("end",)

    follow(Told(), load=lambda source: pytest.fail("a policy was loaded"))


@pytest.mark.slow
@pytest.mark.sandbox
def test_the_command_under_torchrun_is_the_command_alone(tmp_path):
    """The bundled agent with real executions: two processes, then a resume on one."""
    settings = ("--preset", "smoke", "--competitions", "digits", "--steps", 1, "--generation-batch", 2)
    runs = {ranks: tmp_path / str(ranks) / "run" for ranks in (1, 2)}
    assert main(["train", *map(str, settings), "--run-dir", str(runs[1])]) == 0
    done = launched(2, "wmrl_agents.cli", "train", *settings, "--run-dir", runs[2])
    assert done.returncode == 0, done.stderr
    one, two = read_metrics(runs[1]), read_metrics(runs[2])
    for name in ("score", "score_real", "executions", "tokens", "turns", "kl", "grad_norm", "entropy"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-5, abs=1e-7), name
    assert main(["train", "--resume", str(runs[2]), "--steps", "2"]) == 0
    assert len(read_metrics(runs[2])) == 2


def test_several_processes_do_not_share_a_sampling_server(tmp_path):
    ranks = Ranks()
    ranks.size = 2
    config = several_ranks.RUN.replace(sampler="http://127.0.0.1:8000#agent")
    with pytest.raises(ConfigError, match="let them sample with --sampler transformers"):
        GRPOTrainer(config, tmp_path / "run", parts(), ranks)
    assert not (tmp_path / "run").exists()
