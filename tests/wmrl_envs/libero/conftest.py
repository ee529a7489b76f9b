"""What tests of LIBERO share."""

import pytest

from wmrl_envs.libero.env import LiberoEnv


@pytest.fixture
def make():
    """Makes environments and closes them."""
    made = []

    def one(task=0, **settings):
        made.append(LiberoEnv(task, **settings))
        return made[-1]

    yield one
    for env in made:
        env.close()
