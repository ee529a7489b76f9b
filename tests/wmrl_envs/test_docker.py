"""DockerSandbox against a real engine, attacks and all: `make test-docker` runs this."""

import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from tests.attacks import ATTACKS
from tests.wmrl_envs.test_sandbox_attacks import check, data_dir, places, run, temporary
from wmrl_envs.errors import MissingExtraError, SandboxError
from wmrl_envs.sandbox import Job, Limits
from wmrl_envs.sandbox.docker_engine import OWNER, DockerSandbox, engine_version

__all__ = ["data_dir", "places", "temporary"]

needs_engine = pytest.mark.skipif(
    "WMRL_TEST_DOCKER" not in os.environ, reason="`make test-docker` runs this against a real engine"
)


def containers() -> list:
    import docker

    return docker.from_env().containers.list(all=True, filters={"label": OWNER})


@needs_engine
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_docker_withstands(attack, places, data_dir, temporary):
    result = run(DockerSandbox(attack.limits), attack, places, data_dir)
    check(result, attack, attack.status, temporary)
    assert (data_dir / "train.csv").read_text() == "id,target\n0,1\n"
    assert containers() == []


@needs_engine
def test_a_solution_with_the_usual_packages_runs(data_dir):
    code = """
import os, numpy, pandas, sklearn.linear_model, lightgbm, xgboost, PIL
table = pandas.read_csv(os.environ["DATA_DIR"] + "/train.csv")
table.to_csv(os.environ["SUBMISSION_PATH"], index=False)
print(numpy.random.rand())
"""
    sandbox = DockerSandbox(Limits(timeout_s=120))
    first, second = (sandbox.run(Job(code, data_dir)) for _ in range(2))
    assert first.status == "ok", first
    assert first.stdout == second.stdout
    for result in (first, second):
        assert result.submission_path.read_text() == "id,target\n0,1\n"
        result.submission_path.unlink()


@needs_engine
def test_a_cancelled_job_is_killed(data_dir):
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(CancelledError):
        DockerSandbox().run(Job("import time\ntime.sleep(60)", data_dir), cancel)
    assert containers() == []


@needs_engine
def test_what_a_killed_owner_left_is_removed_at_the_next_start(data_dir):
    program = f"""
from pathlib import Path
from wmrl_envs.sandbox.docker_engine import DockerSandbox
from wmrl_envs.sandbox import Job
DockerSandbox().run(Job("import os, time; time.sleep(600)", Path({str(data_dir)!r})))
"""
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    pause = threading.Event()
    while not any(c.status == "running" and c.labels[OWNER] == str(owner.pid) for c in containers()):
        assert owner.poll() is None
        pause.wait(0.05)
    owner.kill()
    owner.wait()
    assert containers() != []
    DockerSandbox()
    assert containers() == []


@needs_engine
def test_an_unknown_image_is_named():
    with pytest.raises(SandboxError, match="Docker has no image 'no-such-image'"):
        DockerSandbox(image="no-such-image")


@needs_engine
def test_an_image_without_python_cannot_run_solutions(tmp_path):
    import docker

    (tmp_path / "file").touch()
    archive = subprocess.run(["tar", "-C", tmp_path, "-c", "."], capture_output=True, check=True).stdout
    docker.from_env().api.import_image_from_data(archive, repository="wmrl-empty")
    with pytest.raises(SandboxError, match="cannot run solutions here"):
        DockerSandbox(image="wmrl-empty")
    assert containers() == []


def test_without_an_engine_one_sentence_says_what_to_do(monkeypatch):
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxError, match=r"No Docker engine answers .* DOCKER_HOST"):
        DockerSandbox()


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    for use in (DockerSandbox, engine_version):
        with pytest.raises(MissingExtraError, match=r"pip install 'wmrl\[docker\]'"):
            use()
