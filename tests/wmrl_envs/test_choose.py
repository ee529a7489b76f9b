"""A sandbox by its name, and what each takes."""

import sys

import gymnasium as gym
import pytest

from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.errors import ConfigError, MissingExtraError, SandboxError
from wmrl_envs.sandbox import BubblewrapSandbox, DevicePool, Job, Limits, UnsafeSandbox, make_sandbox
from wmrl_envs.sandbox.choose import _device_pool
from wmrl_envs.sandbox.docker_engine import container_settings

REPLY = '```python\nprint("here")\n```'


@pytest.fixture
def no_engine(monkeypatch):
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


def test_a_name_makes_its_sandbox():
    limits = Limits(timeout_s=7)
    sandbox = make_sandbox("unsafe", limits, python=sys.executable)
    assert isinstance(sandbox, UnsafeSandbox)
    assert sandbox.limits == limits


@pytest.mark.sandbox
def test_the_default_isolates():
    assert isinstance(make_sandbox(), BubblewrapSandbox)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "none"}, "one of bubblewrap, docker, unsafe, not 'none'"),
        ({"name": "docker", "python": "/usr/bin/python3"}, "name an image instead"),
        ({"name": "unsafe", "image": "mine"}, "leave them out with unsafe"),
        ({"gpus": ["0"]}, "leave them out with bubblewrap"),
    ],
)
def test_what_does_not_go_together_is_said(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_sandbox(**arguments)


def test_sandboxes_of_a_process_share_the_gpus_that_they_name():
    assert _device_pool(("0", "1")) is _device_pool(("0", "1"))


def test_a_container_gets_the_one_gpu_that_was_taken_for_it(tmp_path):
    docker = pytest.importorskip("docker")
    job = Job("", tmp_path)
    [request] = container_settings("image", job, Limits(), tmp_path, gpu="1")["device_requests"]
    client = docker.APIClient("unix:///nowhere/docker.sock", version="1.41")
    asked = client.create_host_config(device_requests=[request])["DeviceRequests"]
    assert asked == [{"Driver": "", "Count": 0, "DeviceIDs": ["1"], "Capabilities": [["gpu"]], "Options": {}}]
    assert container_settings("image", job, Limits(), tmp_path)["device_requests"] == []


def test_an_environment_executes_in_the_sandbox_that_it_is_told():
    env = gym.make("wmrl_envs:wmrl/MLEDojo-v0", competition="digits", sandbox="unsafe")
    env.reset()
    env.step(REPLY)
    assert isinstance(env.unwrapped.default_evaluator.sandbox, UnsafeSandbox)
    env.close()


def test_many_environments_share_the_sandbox_that_they_are_told():
    sandbox = UnsafeSandbox(Limits(timeout_s=7))
    envs = gym.make_vec("wmrl_envs:wmrl/MLEDojo-v0", num_envs=2, competition="digits", sandbox=sandbox)
    envs.reset()
    *_, info = envs.step([REPLY, REPLY])
    assert info["status"].tolist() == ["no_submission"] * 2
    assert envs.unwrapped.default_evaluator.sandbox is sandbox
    envs.close()


@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
def test_an_environment_says_at_once_what_is_wrong_with_its_sandbox(make, no_engine):
    name = "wmrl_envs:wmrl/MLEDojo-v0"
    with pytest.raises(SandboxError, match="No Docker engine answers"):
        make(name, sandbox="docker")
    with pytest.raises(ConfigError, match="not 'moon'"):
        make(name, sandbox="moon")
    with SandboxEvaluator("unsafe") as evaluator, pytest.raises(ConfigError, match="an evaluator or"):
        make(name, sandbox="unsafe", evaluator=evaluator)


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrl\[docker\]'"):
        make_sandbox("docker", gpus=["0"])


def test_a_pool_can_be_handed_over(no_engine):
    """What it holds is not looked at before an engine is there."""
    with pytest.raises(SandboxError, match="No Docker engine answers"):
        make_sandbox("docker", image="mine", gpus=["0", "1"])
    assert DevicePool(["0"]).names == ("0",)
