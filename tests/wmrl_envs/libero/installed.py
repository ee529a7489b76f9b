"""Where LIBERO is not installed, the tests that simulate say so and are skipped."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent

needs_libero = pytest.mark.skipif(
    importlib.util.find_spec("libero") is None or importlib.util.find_spec("robosuite") is None,
    reason="needs the extra libero: make test-libero",
)


def run_python(*arguments, timeout=300, **environment):
    """Run this interpreter on the repository; returns the finished process."""
    import os

    path = f"{ROOT}:{ROOT / 'agents'}"
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
