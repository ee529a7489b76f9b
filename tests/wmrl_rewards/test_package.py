import subprocess
import sys

import pytest

import wmrl_rewards


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, wmrl_rewards; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "wmrl_rewards" in loaded
    assert not {"torch", "transformers", "sklearn", "scipy", "pandas"} & set(loaded)


@pytest.mark.parametrize("name", wmrl_rewards.__all__)
def test_every_public_name_is_there_and_documented(name):
    assert getattr(wmrl_rewards, name).__doc__


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="'Isotonic'"):
        wmrl_rewards.Isotonic  # noqa: B018
