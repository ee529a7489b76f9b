"""Sandboxes that tests run one after the other, and what they print."""

import pytest

from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, UnsafeSandbox

BOTH = [pytest.param(BubblewrapSandbox, marks=pytest.mark.sandbox), UnsafeSandbox]
both = pytest.mark.parametrize("kind", BOTH)


def show(kind, code, data_dir, **limits):
    result = kind(Limits(**limits)).run(Job(code, data_dir))
    assert result.status == "ok", result
    return result.stdout
