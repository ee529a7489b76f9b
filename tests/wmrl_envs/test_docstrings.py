"""The examples in the docstrings run as they stand."""

import doctest
import importlib

import pytest

MODULES = [
    "spaces",
    "autoresearch.competition",
    "autoresearch.env",
    "autoresearch.episode",
    "autoresearch.leaderboard",
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    result = doctest.testmod(importlib.import_module(f"wmrl_envs.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
