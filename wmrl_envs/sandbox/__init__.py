"""Sandboxes: where hostile code runs.

`BubblewrapSandbox` is the default; `DockerSandbox` has an image of its own;
`UnsafeSandbox` isolates nothing and has to be asked for by name.

Example:
    >>> from pathlib import Path
    >>> from wmrl_envs.sandbox import Job, UnsafeSandbox
    >>> UnsafeSandbox().run(Job(code="print(1 + 1)", data_dir=Path("."))).stdout
    '2\\n'
"""

from wmrl_envs.sandbox.bubblewrap import BubblewrapSandbox
from wmrl_envs.sandbox.cache import ExecutionCache
from wmrl_envs.sandbox.choose import make_sandbox
from wmrl_envs.sandbox.devices import DevicePool
from wmrl_envs.sandbox.docker_engine import DockerSandbox
from wmrl_envs.sandbox.job import Job, Limits, Result, Sandbox
from wmrl_envs.sandbox.pool import SandboxPool
from wmrl_envs.sandbox.unsafe import UnsafeSandbox

__all__ = [
    "BubblewrapSandbox",
    "DevicePool",
    "DockerSandbox",
    "ExecutionCache",
    "Job",
    "Limits",
    "Result",
    "Sandbox",
    "SandboxPool",
    "UnsafeSandbox",
    "make_sandbox",
]
