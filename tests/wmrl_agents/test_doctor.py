"""`wmrl doctor`: what is fine, what is not, and what to do then."""

import pytest

from wmrl_agents import doctor
from wmrl_agents.cli import main
from wmrl_envs.sandbox import bubblewrap
from wmrl_envs.sandbox.guards import WatcherGuards


def statuses(capsys) -> dict[str, str]:
    lines = capsys.readouterr().out.splitlines()
    return {line[9:23].strip(): line[:7].strip() for line in lines}


@pytest.mark.sandbox
def test_this_machine_can_run_solutions(capsys):
    assert main(["doctor"]) == 0
    found = statuses(capsys)
    assert list(found) == [
        *("Python", "torch", "transformers", "scikit-learn", "sandbox", "memory limit", "seccomp"),
        *("Docker", "disk", "temporary disk"),
    ]
    assert "error" not in found.values()
    assert found["sandbox"] == found["seccomp"] == "ok"


def test_without_bubblewrap_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "error    sandbox         Solutions run isolated by bubblewrap, which is not" in printed
    assert "apt-get install bubblewrap" in printed


@pytest.mark.sandbox
def test_a_watcher_is_worth_a_warning(monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_guards", WatcherGuards)
    checks = {check.name: check for check in doctor.check_sandbox()}
    assert checks["memory limit"].status == "warning"
    assert "Delegate=yes" in checks["memory limit"].message


def test_an_old_python_is_an_error():
    check = doctor.check_python((3, 10, 14))
    assert (check.status, check.message) == ("error", "3.10.14 is too old: install Python 3.11 or newer.")
    assert doctor.check_python((3, 11, 0)).status == "ok"


def test_a_missing_package_is_named():
    found, missing = doctor.check_packages(["pytest", "no-such-package"])
    assert found.status == "ok"
    assert found.message == pytest.__version__
    assert missing.status == "error"
    assert missing.message == "It is not installed: pip install 'no-such-package'."


@pytest.mark.parametrize(("free_mib", "status"), [(100, "error"), (1000, "warning"), (100_000, "ok")])
def test_a_disk_is_full_short_or_fine(monkeypatch, tmp_path, free_mib, status):
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": free_mib << 20})
    )
    check = doctor.check_disk("disk", tmp_path)
    assert check.status == status
    assert str(tmp_path) in check.message


def test_docker_where_no_engine_answers_is_a_warning(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert doctor.check_docker().status == "warning"


def test_an_unknown_option_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--fix"])
    assert stopped.value.code == 2
