"""vLLM in this program, as far as it can be tested without vLLM; test_vllm.py runs the engine."""

import importlib.util
import sys

import pytest

from tests.stubs import tiny_language_model
from wmrl_envs.errors import MissingExtraError
from wmrl_rewards.language_models import Sampling, VLLMModel, takes_schema
from wmrl_rewards.language_models.vllm_engine import _seeds

WARM = Sampling(seed=3)


def test_it_takes_schemas():
    assert takes_schema(VLLMModel)


def test_without_the_package_the_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrl\[vllm\]'"):
        VLLMModel(tiny_language_model(tmp_path))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_nothing_of_it_is_imported_before_it_is_used():
    assert "vllm" not in sys.modules


def test_seeds_depend_on_seed_prompt_and_number_of_the_sample_alone():
    first, second, other, third = _seeds([[1, 2], [1, 2], [3], [1, 2]], WARM)
    assert len({first, second, other, third}) == 4
    assert all(0 <= seed < 2**31 for seed in (first, second, other, third))
    assert _seeds([[3], [1, 2], [1, 2]], WARM) == [other, first, second]
    assert _seeds([[1, 2]], Sampling(seed=4)) != [first]


def test_greedy_replies_need_no_seed_and_unseeded_ones_a_fresh_one():
    assert _seeds([[1], [2]], Sampling(temperature=0, seed=3)) == [None, None]
    assert _seeds([[1]], Sampling()) != _seeds([[1]], Sampling())
