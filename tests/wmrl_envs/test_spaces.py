import pickle

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.spaces import UnicodeText


@given(st.text())
def test_holds_any_text_up_to_its_length(text):
    assert text in UnicodeText(len(text))
    assert text + "x" not in UnicodeText(len(text))


@pytest.mark.parametrize("stranger", [None, 7, b"bytes", ["text"], "\ud800"])
def test_holds_nothing_else(stranger):
    assert stranger not in UnicodeText(100)


@pytest.mark.parametrize("max_length", [0, 1, 5, 1_000_000])
def test_samples_lie_in_it_and_repeat_under_a_seed(max_length):
    space, twin = UnicodeText(max_length, seed=3), UnicodeText(max_length, seed=3)
    samples = [space.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert samples == [twin.sample() for _ in range(200)]
    assert len(set(samples)) > (100 if max_length > 1 else 0)


def test_it_is_a_gymnasium_space():
    space = UnicodeText(10)
    assert space == UnicodeText(10) != UnicodeText(11)
    assert pickle.loads(pickle.dumps(space)) == space
    assert repr(space) == "UnicodeText(10)"
    assert not space.is_np_flattenable
    batch = gym.vector.utils.batch_space(space, 2)
    assert ("a", "ß") in batch


def test_bad_arguments():
    with pytest.raises(ValueError, match="negative"):
        UnicodeText(-1)
    with pytest.raises(ValueError, match="no masks"):
        UnicodeText(1).sample(mask=[1])
