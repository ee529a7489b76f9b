"""Samplers with weights of their own use the newest ones, and every sample says which."""

import pytest
import torch

from tests.stubs import tiny_language_model
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.low_rank import LoRAConfig
from wmrl_agents.policies.sampler import OwnWeights, Sampler, TransformersSampler
from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import Sampling
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

KINDS = {"full": {}, "lora": {"lora": LoRAConfig(4)}, "sixteen_bits": {"dtype": torch.bfloat16}}


@pytest.fixture
def folder(tmp_path):
    return tiny_language_model(tmp_path / "model")


def copy_of(folder, seed=0, dtype=torch.float32):
    """A sampler of the same layout; another seed gives it other weights to begin with."""
    other = tiny_language_model(folder.parent / f"copy-{seed}", seed=seed)
    return TransformersSampler(HuggingFaceModel(other, device="cpu", dtype=dtype))


def load(folder, **settings):
    return LanguageModelPolicy(folder, max_new_tokens=10, device="cpu", **settings)


def update(policy, optimizer=torch.optim.AdamW, **settings):
    samples = policy.sample([policy.begin("", "Hi")] * 2, seed=0)
    step = optimizer(policy.parameters(), **({"lr": 0.05} | settings))
    step.register_step_post_hook(lambda *_: policy.note_update())
    policy.token_statistics(samples).log_probs.sum().backward()
    step.step()
    step.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_generation_uses_the_new_weights(folder, kind):
    policy = load(folder, **KINDS[kind])
    policy.sampler = copy_of(folder, seed=3)
    prompts = [policy.begin("", text) for text in ("Hi", "Write a program.")]
    before = policy.sample(prompts, seed=0)  # begins with other weights, and must not use them
    update(policy)
    after = policy.sample(prompts, seed=0)
    assert [s.log_probs for s in after] != [s.log_probs for s in before]
    tolerance = 0.2 if kind == "sixteen_bits" else 1e-4
    for sample in after:
        computed = policy.token_statistics([sample]).log_probs.detach()[0]
        assert (computed - torch.tensor(sample.log_probs[1:])).abs().max() < tolerance
    assert {s.version for s in before} == {0}
    assert {s.version for s in after} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_own_weights_and_a_copy_sample_the_same(folder, kind):
    own, copied = load(folder, **KINDS[kind]), load(folder, **KINDS[kind])
    copied.sampler = copy_of(folder, seed=2, dtype=KINDS[kind].get("dtype", torch.float32))
    assert isinstance(own.sampler, OwnWeights)
    prompts = [own.begin("", text) for text in ("Hi", "Write a program.")]
    for mine, its in zip(own.sample(prompts, seed=1), copied.sample(prompts, seed=1), strict=True):
        assert mine.token_ids == its.token_ids
        assert mine.log_probs == pytest.approx(its.log_probs, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"foreach": True}, {"fused": True}])
def test_every_kind_of_update_is_noticed(folder, kind, settings):
    policy = load(folder, **KINDS[kind])
    for version in range(3):
        assert {s.version for s in policy.sample([policy.begin("", "Hi")], seed=0)} == {version}
        update(policy, **settings)


def test_weights_travel_only_when_they_have_changed(folder):
    policy = load(folder)
    policy.sampler = copy_of(folder)
    versions = []
    take = policy.sampler.load_weights
    policy.sampler.load_weights = lambda weights, version: versions.append(version) or take(weights, version)
    prompt = [policy.begin("", "Hi")]
    policy.sample(prompt, seed=0)
    policy.sample(prompt, seed=1)
    update(policy)
    policy.sample(prompt, seed=2)
    assert versions == [0, 1]


def test_samplers_are_samplers(folder):
    sampler = copy_of(folder)
    assert isinstance(sampler, Sampler)
    assert isinstance(OwnWeights(sampler.language_model), Sampler)
    (reply,) = sampler.sample([[5, 6, 7]], Sampling(max_new_tokens=3, seed=0))
    assert len(reply.token_ids) == len(reply.log_probs) == 3


def test_weights_of_another_model_are_refused(folder):
    sampler = copy_of(folder)
    weights = dict(sampler.language_model.model.state_dict())
    with pytest.raises(WMRLError, match="has no weights 'other' of shape"):
        sampler.load_weights([("other", torch.zeros(3))], 1)
    name, tensor = weights.popitem()
    with pytest.raises(WMRLError, match=f"was given no weights for {name}"):
        sampler.load_weights(weights.items(), 1)
    with pytest.raises(WMRLError, match="of shape"):
        sampler.load_weights([(name, tensor[:1])], 1)
