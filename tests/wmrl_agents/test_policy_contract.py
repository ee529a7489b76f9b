"""What every policy promises, for each one that there is: see `wmrl_agents.policies.base`."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.stubs import TabularPolicy, tiny_language_model
from wmrl_agents.grpo.gradients import accumulate_gradients
from wmrl_agents.grpo.roles import TrainablePolicy
from wmrl_agents.policies import resolve_model, token_statistics
from wmrl_agents.policies.base import Policy, Prompt
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.low_rank import LoRAConfig
from wmrl_agents.policies.vla.action_tokens import ResidualCodec
from wmrl_agents.policies.vla.records import Observation
from wmrl_agents.policies.vla.small_vla import SmallVLA

LORA = LoRAConfig(rank=4, alpha=8, seed=5)


def llama(path, **settings):
    settings = {"dtype": torch.float64} | settings
    return LanguageModelPolicy(tiny_language_model(path), max_new_tokens=20, device="cpu", **settings)


def qwen2(path, **settings):
    """A random Qwen2: biases in the attention, tied embeddings."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny_language_model(path / "llama"))
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(path / "qwen")
    tokenizer.save_pretrained(path / "qwen")
    settings = {"dtype": torch.float64} | settings
    return LanguageModelPolicy(path / "qwen", max_new_tokens=20, device="cpu", **settings)


def tiny_coder(path, **settings):
    return LanguageModelPolicy(
        resolve_model("tiny-coder"), max_new_tokens=20, device="cpu", dtype=torch.float64, **settings
    )


class TalkedTo(SmallVLA):
    """A policy for robots that sees numbers made of the words that the others are told."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.network.double()

    def begin(self, system, user):
        return super().begin("task", _numbers(system, user))

    def extend(self, sample, user):
        return super().extend(sample, _numbers(user))


def _numbers(*words):
    digest = hashlib.sha256(repr(words).encode()).digest()
    return Observation(np.frombuffer(digest[:3], dtype=np.uint8).astype(np.float32) / 128 - 1)


def small_vla(path):
    entries = torch.randn(7, 8, 56, generator=torch.Generator().manual_seed(0))
    return TalkedTo(["task"], codec=ResidualCodec(entries), state_size=3, hidden=32)


POLICIES = {
    "llama": llama,
    "qwen2": qwen2,
    "tiny_coder": tiny_coder,
    "lora": lambda path: llama(path, lora=LORA),
    "checkpointing": lambda path: llama(path, gradient_checkpointing=True),
    "lora_and_checkpointing": lambda path: qwen2(path, lora=LORA, gradient_checkpointing=True),
    "tabular": lambda path: TabularPolicy(),
    "small_vla": small_vla,
}


@pytest.fixture(params=POLICIES)
def policy(request, tmp_path):
    made = POLICIES[request.param](tmp_path)
    jiggle(made)
    return made


def jiggle(policy, seed=0):
    """Move all trainable weights a little, so that an adapter does something."""
    generator = torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def saved_and_loaded(policy, path):
    policy.save(path / "saved")
    if isinstance(policy, TabularPolicy):
        return TabularPolicy.load(path / "saved")
    if isinstance(policy, SmallVLA):
        return TalkedTo.load(path / "saved")
    settings = {"max_new_tokens": 20, "device": "cpu", "dtype": torch.float64}
    if not policy.adapts:
        return LanguageModelPolicy(path / "saved", **settings)
    from wmrl_rewards.language_models.loading import base_of

    base = base_of(path / "saved")
    return LanguageModelPolicy(base, lora=LORA, adapter=path / "saved", **settings)


def two_turns(policy, size=4):
    """Records of two turns, of different lengths."""
    prompts = [policy.begin("Be brief.", "a" * (1 + 3 * i)) for i in range(size)]
    first = policy.sample(prompts, seed=1)
    return policy.sample([policy.extend(s, "status: ok\nroc_auc: 0.97") for s in first], seed=2)


def gradient(policy, samples, **settings):
    for parameter in policy.parameters():
        parameter.grad = None
    coefficients = [(-1.0) ** i * (1 + i) for i in range(len(samples))]
    accumulate_gradients(policy, samples, coefficients, **settings)
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def test_it_is_a_trainable_policy(policy):
    assert isinstance(policy, Policy)
    for name in ("max_context", "max_new_tokens", "keeps_start"):
        assert hasattr(policy, name)
    for name in set(vars(TrainablePolicy)) - set(vars(Policy)):
        assert name.startswith("_") or hasattr(policy, name)


def test_it_is_deterministic(policy):
    assert two_turns(policy) == two_turns(policy)


def test_nothing_asked_is_nothing_answered(policy):
    assert policy.sample([], seed=1) == []
    if isinstance(policy, TabularPolicy):
        return  # a stand-in, which is never asked for nothing
    assert policy.log_probs([]).shape[0] == 0
    statistics = policy.token_statistics([], policy.frozen_copy(), entropy=True)
    assert all(getattr(statistics, name).numel() == 0 for name in ("log_probs", "kl", "entropy", "mask"))


def test_what_is_saved_comes_back(policy, tmp_path):
    again = saved_and_loaded(policy, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))
    fresh = two_turns(again)
    assert [s.token_ids for s in fresh] == [s.token_ids for s in two_turns(policy)]


def test_log_probabilities_are_those_recorded(policy):
    samples = two_turns(policy)
    for row, sample in zip(policy.log_probs(samples).detach(), samples, strict=True):
        own = torch.tensor(sample.mask[1:])
        recorded = torch.tensor(sample.log_probs[1:], dtype=row.dtype)
        assert (row[: len(own)] - recorded)[own].abs().max() < 1e-5


def test_company_changes_no_sample_and_no_log_probability(policy):
    """Shorter prompts are padded on the left while sampling, and on the right in training."""
    samples = two_turns(policy)
    together = policy.log_probs(samples).detach()
    for row, sample in zip(together, samples, strict=True):
        alone = policy.log_probs([sample])[0].detach()
        assert (row[: len(alone)] - alone).abs().max() < 1e-5
    if isinstance(policy, TabularPolicy):
        return  # one stream of random numbers serves all prompts
    prompts = [policy.begin("Be brief.", text) for text in ("a", "a much longer task than the other one")]
    for prompt, sample in zip(prompts, policy.sample(prompts, seed=4), strict=True):
        (alone,) = policy.sample([prompt], seed=4)
        assert alone.token_ids == sample.token_ids
        differences = [a - b for a, b in zip(alone.log_probs, sample.log_probs, strict=True)]
        assert max(map(abs, differences)) < 1e-5


@pytest.mark.parametrize("reduction", ["sum", "sequence_mean"])
def test_the_size_of_micro_batches_changes_no_gradient(policy, reduction):
    samples = two_turns(policy, size=5)
    settings = {
        "reference": policy.frozen_copy(),
        "kl_coefficient": 0.1,
        "entropy_coefficient": 0.01,
        "loss_reduction": reduction,
    }
    jiggle(policy, seed=1)
    whole = gradient(policy, samples, micro_batch=5, **settings)
    assert whole.norm() > 1e-3
    for size in (1, 2):
        parts = gradient(policy, samples, micro_batch=size, **settings)
        assert (parts - whole).norm() <= 1e-6 * whole.norm()


def test_gradients_reach_own_tokens_and_no_others(policy, monkeypatch):
    """The derivative of the loss by each token's log-probability, observations included."""
    seen = []

    def keep(self, samples, reference=None, *, entropy=False):
        statistics = original(samples, reference, entropy=entropy)
        statistics.log_probs.retain_grad()
        seen.append(statistics)
        return statistics

    original = policy.token_statistics
    monkeypatch.setattr(type(policy), "token_statistics", keep)
    samples = two_turns(policy)
    gradient(policy, samples)
    (statistics,) = seen
    longest = sorted(samples, key=lambda sample: -len(sample.token_ids))
    for row, sample in zip(statistics.log_probs.grad, longest, strict=True):
        own = torch.tensor(sample.mask[1:])
        assert own.any()
        assert isinstance(policy, SmallVLA) or not own.all()  # what it sees is no token
        assert (row[: len(own)][own] != 0).all()
    assert (statistics.log_probs.detach()[~statistics.mask] == 0).all()


def test_it_learns_to_say_what_is_rewarded(policy):
    """Reward is the share of one token in the reply, the identity of that token: it rises in a few steps."""
    prompts = [policy.begin("", "task")] * 16
    target = policy.sample(prompts[:1], seed=0)[0].token_ids[len(prompts[0].token_ids)]
    rate = 0.2 if isinstance(policy, TabularPolicy) else 0.05 if getattr(policy, "adapts", False) else 0.02
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate)

    def reward(sample):
        reply = sample.token_ids[len(prompts[0].token_ids) :]
        return sum(token == target for token in reply) / len(reply)

    def mean_reward(seed):
        samples = policy.sample(prompts, seed=seed)
        return samples, [reward(sample) for sample in samples]

    before = sum(mean_reward(1000)[1]) / 16
    for step in range(12):
        samples, rewards = mean_reward(step)
        mean = sum(rewards) / len(rewards)
        optimizer.zero_grad()
        accumulate_gradients(policy, samples, [(r - mean) / len(rewards) for r in rewards])
        optimizer.step()
    assert sum(mean_reward(1000)[1]) / 16 > before + 0.3


def test_a_frozen_copy_is_not_moved(policy):
    before = two_turns(policy)
    reference = policy.frozen_copy()
    base = isinstance(policy, LanguageModelPolicy) and policy.adapts
    fixed = reference.log_probs(before).detach()
    if not base:  # of an adapter the reference is what lies below it
        assert torch.equal(fixed, policy.log_probs(before).detach())
    jiggle(policy, seed=3)
    assert torch.equal(reference.log_probs(before).detach(), fixed)
    assert not torch.equal(policy.log_probs(before).detach(), fixed)


def test_dialogues_are_not_changed(policy):
    sample = two_turns(policy)[0]
    kept = replace(sample)
    policy.extend(sample, "status: ok")
    policy.log_probs([sample])
    assert sample == kept


def test_gradient_checkpointing_changes_no_gradient(tmp_path):
    plain, saving = llama(tmp_path), llama(tmp_path, gradient_checkpointing=True)
    samples = two_turns(plain)
    layers = [m for m in saving.model.modules() if isinstance(m, token_statistics.GradientCheckpointingLayer)]
    runs = []
    for layer in layers:
        layer.self_attn.register_forward_hook(lambda *_: runs.append(1))
    assert torch.allclose(gradient(saving, samples), gradient(plain, samples), rtol=1e-12, atol=1e-12)
    assert len(runs) == 2 * len(layers)  # forward, and again in the backward pass


def test_a_record_without_padding_tokens_of_its_own():
    with pytest.raises(ValueError, match="of one length"):
        Prompt((1,), (), ())
