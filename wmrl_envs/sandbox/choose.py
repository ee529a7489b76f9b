"""From a sandbox's name, as settings have it, to the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from wmrl_envs.errors import ConfigError
from wmrl_envs.sandbox.bubblewrap import BubblewrapSandbox
from wmrl_envs.sandbox.devices import DevicePool
from wmrl_envs.sandbox.docker_engine import IMAGE, DockerSandbox
from wmrl_envs.sandbox.job import Limits, Sandbox
from wmrl_envs.sandbox.unsafe import UnsafeSandbox

__all__ = ["SandboxName", "check_choice", "make_sandbox"]

SandboxName = Literal["bubblewrap", "docker", "unsafe"]


def make_sandbox(
    name: SandboxName = "bubblewrap",
    limits: Limits | None = None,
    *,
    python: str | Path | None = None,
    image: str | None = None,
    gpus: Sequence[str] | None = None,
) -> Sandbox:
    """Make the sandbox of that name.

    Args:
        name: ``bubblewrap``, ``docker``, or ``unsafe``, which isolates nothing.
        limits: What one job may use.
        python: Interpreter for the solutions; None for the one that runs this. Not for Docker.
        image: Docker's image; None for ``wmrl-solution``.
        gpus: GPUs for Docker's jobs, one for each; None for none. Sandboxes of this process that are given
            the same ones share them.

    Raises:
        ConfigError: There is no sandbox of that name, or it does not take such an argument.
        MissingExtraError: The package docker is not installed.
        SandboxError: It cannot be had on this machine.

    Example:
        >>> make_sandbox("unsafe", Limits(timeout_s=5)).limits.timeout_s
        5
    """
    check_choice(name, python, image, gpus)
    if name == "docker":
        pool = None if gpus is None else _device_pool(tuple(sorted(gpus)))
        return DockerSandbox(limits, image or IMAGE, pool)
    kind = BubblewrapSandbox if name == "bubblewrap" else UnsafeSandbox
    return kind(limits, python)


def check_choice(
    name: str, python: str | Path | None = None, image: str | None = None, gpus: Sequence[str] | None = None
) -> None:
    """Whether `make_sandbox` takes these together; raises the ConfigError that it raises."""
    if name not in get_args(SandboxName):
        raise ConfigError(f"sandbox must be one of {', '.join(get_args(SandboxName))}, not {name!r}.")
    if name == "docker" and python is not None:
        raise ConfigError("The sandbox docker runs the Python of its image: name an image instead.")
    if name != "docker" and (image is not None or gpus is not None):
        raise ConfigError(f"Images and GPUs are for the sandbox docker: leave them out with {name}.")


@lru_cache(maxsize=16)
def _device_pool(gpus: tuple[str, ...]) -> DevicePool:
    """The same for all who name the same GPUs: a training run and its evaluation never meet on one."""
    return DevicePool(gpus)
