"""``wmrl doctor``: whether this machine has what a run needs, one line for each thing looked at."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from wmrl_envs.errors import SandboxError, WMRLError

__all__ = [
    "Check",
    "check_disk",
    "check_docker",
    "check_mini_vla",
    "check_packages",
    "check_python",
    "check_robometer",
    "check_sandbox",
    "main",
]

GIB = 1 << 30
OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch", "transformers", "scikit-learn")
ENOUGH_BYTES = 5 * GIB
TOO_FEW_BYTES = GIB // 4


@dataclass(frozen=True)
class Check:
    """What was found about one thing.

    Attributes:
        status: ``error`` keeps a run from starting; ``warning`` costs something, or concerns an option.
        name: The thing.
        message: What was found and, unless it is fine, what to do.
    """

    status: Literal["ok", "warning", "error"]
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.status:7}  {self.name:14}  {self.message}"


def main(arguments: Sequence[str]) -> int:
    """Run ``wmrl doctor`` with these arguments.

    Returns:
        0 if a run can start, 1 if there is an error.
    """
    parser = argparse.ArgumentParser(
        prog="wmrl doctor", description="Say what this machine can do, and lacks."
    )
    parser.add_argument("--robometer", metavar="DIR", help="check a folder of Robometer's weights instead")
    parser.add_argument("--mini-vla", metavar="DIR", help="check a folder of MiniVLA's weights instead")
    parser.add_argument(
        "--codec", metavar="DIR", help="folder of MiniVLA's action codec, if it is another one"
    )
    parser.add_argument("--tokenizer", metavar="DIR", help="folder of the tokenizer, if it is another one")
    options = parser.parse_args(arguments)
    looks: list[Callable[[], Iterator[Check]]] = [
        lambda: iter([check_python()]),
        lambda: iter(check_packages()),
    ]
    if options.robometer is not None:
        looks.append(lambda: check_robometer(options.robometer, options.tokenizer))
    if options.mini_vla is not None:
        looks.append(lambda: check_mini_vla(options.mini_vla, options.codec, options.tokenizer))
    if options.robometer is None and options.mini_vla is None:
        looks += [
            check_sandbox,
            lambda: iter([check_docker()]),
            lambda: (check_disk(name, folder) for name, folder in _places().items()),
        ]
    failed = False
    for check in (check for look in looks for check in look()):
        failed |= check.status == "error"
        print(check)
    return int(failed)


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Whether Python is new enough.

    Args:
        version: Major, minor and micro number; this interpreter's by default.
    """
    name = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        return Check("error", "Python", f"{name} is too old: install Python 3.11 or newer.")
    return Check("ok", "Python", f"{name} on {platform.machine()}")


def check_packages(names: Sequence[str] = PACKAGES) -> list[Check]:
    """Which versions of the larger packages are installed.

    Args:
        names: Names of distributions.
    """
    return [_check_package(name) for name in names]


def _check_package(name: str) -> Check:
    try:
        return Check("ok", name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check("error", name, f"It is not installed: pip install '{name}'.")


def check_sandbox() -> Iterator[Check]:
    """Whether solutions can be isolated here, and by what means."""
    from wmrl_envs.sandbox import BubblewrapSandbox
    from wmrl_envs.sandbox.seccomp import DENIED

    try:
        sandbox = BubblewrapSandbox()
    except SandboxError as error:
        yield Check("error", "sandbox", str(error))
        return
    yield Check("ok", "sandbox", f"bubblewrap {sandbox.version}; {sandbox.isolation}")
    if sandbox.memory_limiter == "watcher":
        advice = "no control group can be made: delegate one (systemd-run --user --scope -p Delegate=yes)."
        yield Check("warning", "memory limit", f"A watcher looks ten times a second, because {advice}")
    else:
        yield Check("ok", "memory limit", sandbox.memory_limiter)
    yield Check("ok", "seccomp", f"{len(DENIED)} system calls are refused")


def check_docker() -> Check:
    """Whether `DockerSandbox` could be used; nothing else needs Docker."""
    from wmrl_envs.sandbox.docker_engine import engine_version

    if importlib.util.find_spec("docker") is None:
        return Check("warning", "Docker", "Only its sandbox needs it: pip install 'wmrl[docker]'.")
    try:
        return Check("ok", "Docker", f"engine {engine_version()}")
    except SandboxError as error:
        return Check("warning", "Docker", f"Only its sandbox needs it. {error}")


def _places() -> dict[str, Path]:
    return {"disk": Path.cwd(), "temporary disk": Path(tempfile.gettempdir())}


def check_disk(name: str, folder: Path, enough_bytes: int = ENOUGH_BYTES) -> Check:
    """Whether a folder's disk has room for a run.

    Args:
        name: For the report.
        folder: A folder on that disk.
        enough_bytes: Less than this is worth a warning.
    """
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB are free at {folder}"
    if free < TOO_FEW_BYTES:
        return Check("error", name, f"{found}: make room, a run's checkpoints would not fit.")
    if free < enough_bytes:
        return Check("warning", name, f"{found}: a long run may need more.")
    return Check("ok", name, found)


def check_robometer(directory: str, tokenizer: str | None = None) -> Iterator[Check]:
    """Whether a folder holds a Robometer: configuration, names and shapes, tokenizer, a forward pass.

    Args:
        directory: The folder.
        tokenizer: Where its tokenizer is, if not there.
    """
    import numpy as np

    from wmrl_rewards.prediction import PredictionRequest
    from wmrl_rewards.world_models.robometer import RobometerWorldModel
    from wmrl_rewards.world_models.robometer_checkpoint import read_settings, weight_faults

    try:
        settings = read_settings(directory)
    except WMRLError as error:
        yield Check("error", "configuration", str(error))
        return
    layers = settings.backbone.text_config.num_hidden_layers
    yield Check("ok", "configuration", f"Qwen3-VL with {layers} layers, {settings.bins} bins of progress")
    faults = list(weight_faults(directory, settings))
    yield from (Check("error", "weights", fault) for fault in faults)
    if faults:
        return
    yield Check("ok", "weights", "every name and shape is as it should be")
    try:
        model = RobometerWorldModel(directory, tokenizer=tokenizer)
    except WMRLError as error:
        yield Check("error", "tokenizer", str(error))
        return
    yield Check("ok", "tokenizer", "its tokens are in the order of the embeddings")
    grey = np.linspace(0, 255, 8, dtype=np.uint8)[:, None, None, None]
    frames = np.broadcast_to(grey, (8, 128, 128, 3)).copy()
    (seen,) = model.progress([PredictionRequest("make the picture white", frames=frames)])
    if seen.error:
        yield Check("error", "forward pass", seen.error)
        return
    values = " ".join(f"{value:.2f}" for value in seen.values)
    yield Check("ok", "forward pass", f"progress of eight frames from black to white: {values}")


def check_mini_vla(directory: str, codec: str | None = None, tokenizer: str | None = None) -> Iterator[Check]:
    """Whether a folder holds a MiniVLA: weights, codec, tokenizer, statistics, and a decision.

    Args:
        directory: The folder of the run.
        codec: Where its action codec is, if not there.
        tokenizer: Where its tokenizer is, if not there.
    """
    import numpy as np

    from wmrl_agents.policies.vla.mini_vla import MiniVLA
    from wmrl_agents.policies.vla.records import Observation

    try:
        policy = MiniVLA(directory, codec=codec, tokenizer=tokenizer)
    except WMRLError as error:
        yield Check("error", "MiniVLA", str(error))
        return
    side = policy.network.image_size
    yield Check("ok", "MiniVLA", f"weights, codec, tokenizer and statistics; pictures of {side} pixels")
    picture = Observation(image=np.zeros((side, side, 3), np.uint8))
    [sample] = policy.sample([policy.begin("open the drawer", picture)], seed=0, greedy=True)
    if not np.isfinite(sample.log_probs).all():
        yield Check("error", "decision", "Its probabilities are not finite: the weights are broken.")
        return
    codes = " ".join(map(str, sample.token_ids[1:]))
    yield Check("ok", "decision", f"in the dark it says the codes {codes}")
