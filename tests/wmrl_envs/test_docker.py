"""DockerSandbox against a real engine, attacks and all: `make test-docker` runs this."""

import os
import subprocess
import sys
import tempfile
import threading
import uuid
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import pytest

from tests.attacks import ATTACKS
from tests.wmrl_envs.test_sandbox_attacks import check, data_dir, make_data, nothing_is_left_in, places, run
from wmrl_envs.errors import MissingExtraError, SandboxError
from wmrl_envs.sandbox import Job, Limits
from wmrl_envs.sandbox.docker_engine import OWNER, DockerSandbox, container_settings, engine_version

__all__ = ["data_dir", "places"]

AT_ONCE = 2  # more than half of a container's time is waiting for the engine

needs_engine = pytest.mark.skipif(
    "WMRL_TEST_DOCKER" not in os.environ, reason="`make test-docker` runs this against a real engine"
)


def containers() -> list:
    import docker

    return docker.from_env().containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """Where temporary files go during these tests."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(scope="module")
def results(request, places, temporary, tmp_path_factory):
    """What comes of each attack that is tested, as a future: they run two at a time, before their tests."""
    name = test_docker_withstands.__name__
    items = [item for item in request.session.items if getattr(item, "originalname", None) == name]

    def attacked(attack, data_dir):
        mark = uuid.uuid4().hex
        result = run(DockerSandbox(attack.limits), attack, places, data_dir, mark)
        assert (data_dir / "train.csv").read_text() == "id,target\n0,1\n"
        assert [c for c in containers() if f"MARK={mark}" in c.attrs["Config"]["Env"]] == []
        return result

    threads = ThreadPoolExecutor(AT_ONCE)
    attacks = [item.callspec.params["attack"] for item in items]
    yield {a.name: threads.submit(attacked, a, make_data(tmp_path_factory.mktemp("data"))) for a in attacks}
    threads.shutdown(cancel_futures=True)


@needs_engine
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_docker_withstands(attack, results):
    check(results[attack.name].result(), attack, "docker", f"Docker {engine_version()}")


@needs_engine
def test_no_attack_leaves_anything(results, temporary):
    for result in results.values():
        result.exception()
    assert nothing_is_left_in(temporary)
    assert containers() == []


@needs_engine
def test_a_solution_with_the_usual_packages_runs(data_dir):
    code = """
import os, numpy, pandas, sklearn.linear_model, lightgbm, xgboost, PIL
table = pandas.read_csv(os.environ["DATA_DIR"] + "/train.csv")
table.to_csv(os.environ["SUBMISSION_PATH"], index=False)
print(numpy.random.rand())
"""
    sandbox = DockerSandbox(Limits(timeout_s=600))  # importing them all takes long on a busy machine
    first, second = (sandbox.run(Job(code, data_dir)) for _ in range(2))
    assert first.status == "ok", first
    assert first.stdout == second.stdout
    for result in (first, second):
        assert result.submission_path.read_text() == "id,target\n0,1\n"
        result.submission_path.unlink()


@needs_engine
def test_an_episode_from_reply_to_score():
    """Programs run in containers, and what they submit is graded."""
    code = """
import os, shutil
shutil.copyfile(os.environ["DATA_DIR"] + "/sample_submission.csv", os.environ["SUBMISSION_PATH"])
print(sorted(os.listdir("/sandbox")))
"""
    name = "wmrl_envs:wmrl/MLEDojo-v0"
    env = gym.make(name, competition="breast-cancer", sandbox="docker", max_turns=2)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("```python\nraise SystemExit(3)\n```")
    assert (reward, terminated, info["status"]) == (0.0, False, "error")
    observation, reward, terminated, _, info = env.step(f"```python\n{code}\n```")
    assert (terminated, info["status"], info["error"]) == (True, "ok", None)
    assert "container.py" in observation
    assert reward == info["percentile"]
    assert info["score"] is not None
    env.close()
    assert containers() == []


@needs_engine
def test_the_engine_is_asked_for_the_one_gpu_that_a_job_has(data_dir):
    import docker

    client = docker.from_env()
    image = client.images.get("wmrl-solution").id
    settings = container_settings(image, Job("", data_dir), Limits(), data_dir, gpu="1")
    container = client.containers.create(**settings)
    try:
        [request] = container.attrs["HostConfig"]["DeviceRequests"]
    finally:
        container.remove(v=True)
    assert (request["DeviceIDs"], request["Capabilities"]) == (["1"], [["gpu"]])


@needs_engine
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_missed_at_once():
    with pytest.raises(SandboxError, match=r"cannot run solutions here.*device"):
        DockerSandbox(gpus=["0"])
    assert containers() == []


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
