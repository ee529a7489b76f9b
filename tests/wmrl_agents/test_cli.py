import os
import shutil
import signal
import subprocess
import sys

import pytest

import wmrl_agents.train
from tests.stubs import TabularPolicy, TokenEvaluator
from tests.wmrl_agents.killed_run import parts
from wmrl_agents.cli import main
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.runs import load_run, read_metrics
from wmrl_envs.autoresearch import load_competition

QUICK = ["--preset", "smoke", "--learning-rate", "0.05", "--min-pairs", "4", "--refit-every", "4"]


@pytest.fixture
def stub_parts(monkeypatch):
    """The command with a tabular policy and no sandbox."""
    monkeypatch.setattr(
        wmrl_agents.train, "GRPOTrainer", lambda config, run_dir: GRPOTrainer(config, run_dir, parts())
    )


def without_times(run_dir):
    return [
        {name: value for name, value in step.items() if not name.startswith("seconds_")}
        for step in read_metrics(run_dir)
    ]


def refused(capsys, *arguments):
    """The sentence with which the command refuses its input."""
    code = main(list(arguments))
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("wmrl: ")
    assert "Traceback" not in error
    return error


def test_help_is_instant_and_complete():
    command = [sys.executable, "-X", "importtime", "-m", "wmrl_agents.cli", "train", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "pandas", "sklearn"}
    for part in (
        "--preset NAME",
        "--run-dir DIR",
        "--resume DIR",
        "--group-size",
        "--reward-source",
        "[0.04]",
    ):
        assert part in result.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["evaluate", "--help"], ["report", "--help"]])
def test_every_command_has_help(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: wmrl" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["", "trane", "train --grup-size 3", "report", "train --step 3"])
def test_unknown_arguments_end_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_from_start_to_report(tmp_path, stub_parts, capsys):
    run_dir = tmp_path / "run"
    assert main(["train", *QUICK, "--run-dir", str(run_dir), "--steps", "3", "--group_size", "4"]) == 0
    output = capsys.readouterr().out
    assert load_run(run_dir).group_size == 4
    for part in ("step 3/3", "rho 1.00", "executions saved", "would have used", "report: ", "index.html"):
        assert part in output
    assert (run_dir / "report" / "index.html").is_file()
    assert main(["report", str(run_dir)]) == 0


def test_four_steps_equal_two_and_a_resume(tmp_path, stub_parts):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert main(["train", *QUICK, "--run-dir", str(whole), "--steps", "4"]) == 0
    assert main(["train", *QUICK, "--run-dir", str(halves), "--steps", "2"]) == 0
    assert main(["train", "--resume", str(halves), "--steps", "4"]) == 0
    assert without_times(halves) == without_times(whole)
    assert load_run(halves) == load_run(whole)


def test_an_interrupt_finishes_the_step_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    class Interrupted(GRPOTrainer):
        def step(self):
            if self.next_step == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step()

    def interrupted(config, run_dir):
        return Interrupted(config, run_dir, parts())

    monkeypatch.setattr(wmrl_agents.train, "GRPOTrainer", interrupted)
    run_dir = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    arguments = ["train", *QUICK, "--run-dir", str(run_dir), "--steps", "4", "--checkpoint-every", "9"]
    assert main(arguments) == 130
    assert f"wmrl train --resume {run_dir}" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before
    assert len(read_metrics(run_dir)) == 2
    monkeypatch.setattr(wmrl_agents.train, "GRPOTrainer", lambda c, d: GRPOTrainer(c, d, parts()))
    assert main(["train", "--resume", str(run_dir)]) == 0
    assert len(read_metrics(run_dir)) == 4


def test_a_second_interrupt_stops_at_once(tmp_path, monkeypatch, capsys):
    class Impatient(GRPOTrainer):
        def step(self):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            return super().step()

    monkeypatch.setattr(wmrl_agents.train, "GRPOTrainer", lambda c, d: Impatient(c, d, parts()))
    assert main(["train", *QUICK, "--run-dir", str(tmp_path / "run")]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_is_not_overwritten(tmp_path, stub_parts, capsys):
    arguments = ["train", *QUICK, "--run-dir", str(tmp_path / "run"), "--steps", "1"]
    assert main(arguments) == 0
    capsys.readouterr()
    assert "--resume" in refused(capsys, *arguments)


def test_bad_settings(tmp_path, capsys):
    new = ["--run-dir", str(tmp_path / "run")]
    assert "Unknown preset 'tiny'" in refused(capsys, "train", "--preset", "tiny", *new)
    assert "group_size must be at least 2" in refused(capsys, "train", "--group-size", "1", *new)
    assert "no config file" in refused(capsys, "train", "--config", str(tmp_path / "none.yaml"), *new)
    (tmp_path / "bad.yaml").write_text("steps: [")
    assert "not valid YAML" in refused(capsys, "train", "--config", str(tmp_path / "bad.yaml"), *new)
    (tmp_path / "typo.yaml").write_text("grup_size: 8")
    assert "did you mean 'group_size'" in refused(
        capsys, "train", "--config", str(tmp_path / "typo.yaml"), *new
    )
    assert not (tmp_path / "run").exists()


def test_bad_resumes(tmp_path, stub_parts, capsys):
    assert "There is no run" in refused(capsys, "train", "--resume", str(tmp_path / "nothing"))
    run_dir = str(tmp_path / "run")
    assert main(["train", *QUICK, "--run-dir", run_dir, "--steps", "2"]) == 0
    capsys.readouterr()
    assert "made with learning_rate 0.05, not 1.0" in refused(
        capsys, "train", "--resume", run_dir, "--learning-rate", "1"
    )
    assert "finished 2 steps already" in refused(capsys, "train", "--resume", run_dir, "--steps", "1")
    assert "leave --preset out" in refused(capsys, "train", "--resume", run_dir, "--preset", "smoke")


def test_bad_competitions(tmp_path, capsys):
    new = ["--run-dir", str(tmp_path / "run")]
    assert "Unknown competition 'titanik'" in refused(capsys, "train", "--competitions", "titanik", *new)
    broken = tmp_path / "broken"
    shutil.copytree(load_competition("digits").root, broken)
    (broken / "private" / "answers.csv").unlink()
    assert "private/answers.csv" in refused(capsys, "train", "--competitions", str(broken), *new)
    garbled = tmp_path / "garbled"
    shutil.copytree(load_competition("digits").root, garbled)
    (garbled / "competition.yaml").write_text("metric: [")
    assert "competition.yaml" in refused(capsys, "train", "--competitions", str(garbled), *new)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_missing_bubblewrap(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bubblewrap" in refused(capsys, "train", *QUICK, "--run-dir", str(tmp_path / "run"))
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("command", [["train"], ["evaluate", "tiny-coder"]], ids=["train", "evaluate"])
def test_missing_engine(tmp_path, capsys, monkeypatch, command):
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    place = ["--run-dir" if command == ["train"] else "--output", str(tmp_path / "out")]
    sentence = refused(capsys, *command, *QUICK, "--sandbox", "docker", "--solution-image", "mine", *place)
    assert "No Docker engine answers" in sentence
    assert "DOCKER_HOST" in sentence
    assert not (tmp_path / "out").exists()


def test_missing_sdk(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    arguments = ["train", *QUICK, "--sandbox", "docker", "--run-dir", str(tmp_path / "run")]
    assert "pip install 'wmrl[docker]'" in refused(capsys, *arguments)


def test_missing_models(tmp_path, capsys):
    arguments = ["train", *QUICK, "--sandbox", "unsafe", "--run-dir", str(tmp_path / "run")]
    missing = str(tmp_path / "no" / "model")
    assert "no model directory" in refused(capsys, *arguments, "--world-model", missing)
    assert "no model directory" in refused(capsys, *arguments, "--reward-source", "real", "--policy", missing)
    assert "after a '#'" in refused(capsys, *arguments, "--world-model", "http://127.0.0.1:1/v1")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_split_without_competitions(tmp_path, capsys):
    shutil.copytree(load_competition("digits").root, tmp_path / "tasks" / "digits")
    places = ["--data-root", str(tmp_path / "tasks"), "--output", str(tmp_path / "numbers.json")]
    assert "no competitions of the split 'heldout'" in refused(
        capsys, "evaluate", "tiny-coder", "--split", "heldout", *places
    )


def test_report_of_nothing(tmp_path, capsys):
    assert "There is no run" in refused(capsys, "report", str(tmp_path))


def test_a_run_that_the_machine_fails_stops_or_goes_on_and_says_why(tmp_path, monkeypatch, capsys):
    """Programs with a 1 cannot be executed here; every second program has one."""
    lossy = Parts(TabularPolicy.load, TokenEvaluator(missing=1))
    monkeypatch.setattr(
        wmrl_agents.train, "GRPOTrainer", lambda config, run_dir: GRPOTrainer(config, run_dir, lossy)
    )
    run_dir, quiet = tmp_path / "run", ["--evaluate-before", "false", "--evaluate-after", "false"]
    options = [*QUICK, *quiet, "--reward-source", "real", "--steps", "3", "--on-infrastructure", "stop"]
    assert main(["train", *options, "--run-dir", str(run_dir)]) == 2
    sentence = "The machine failed in an execution, and on_infrastructure is 'stop'. lost"
    assert f"wmrl: {sentence}" in capsys.readouterr().err
    assert (run_dir / "stopped.txt").read_text().startswith(sentence)
    page = run_dir / "report/index.html"
    assert "The machine failed in an execution" in page.read_text()
    assert main(["train", "--resume", str(run_dir), "--on-infrastructure", "continue"]) == 0
    assert not (run_dir / "stopped.txt").exists()
    lost = sum(step["infrastructure"]["lost"] for step in read_metrics(run_dir))
    assert lost > 0
    said = capsys.readouterr().out
    assert f"{lost} executions gave no score, by the machine's fault:\n  {lost} x lost\n" in said
    assert f"In training {lost} scores are missing by the machine&#39;s fault. {lost} times: lost" in (
        page.read_text()
    )
