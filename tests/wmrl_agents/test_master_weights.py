"""16-bit weights with float32 masters: small steps add up, and both sides agree."""

import pytest
import torch

from tests.stubs import tiny_language_model
from wmrl_agents.policies.language_model import LanguageModelPolicy


@pytest.fixture
def folder(tmp_path):
    return tiny_language_model(tmp_path / "model")


@pytest.fixture
def policy(folder):
    return LanguageModelPolicy(folder, max_new_tokens=8, device="cpu", dtype=torch.bfloat16)


def loss(policy, samples):
    return policy.token_statistics(samples).log_probs.sum()


def test_the_model_computes_in_sixteen_bits_and_the_optimiser_in_thirty_two(policy):
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert policy.model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_steps_that_sixteen_bits_cannot_hold_add_up(policy):
    weight = policy.model.lm_head.weight
    before = weight.detach().clone()
    largest = int(before.abs().argmax())
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    step = (
        before.flatten()[largest].abs().item() / 2**11
    )  # an eighth of what a bfloat16 next to it differs by
    for _ in range(16):
        for parameter in policy.parameters():
            parameter.grad = torch.full_like(parameter, -step)
        optimizer.step()
    policy.begin("", "Hi")
    policy.token_statistics(policy.sample([policy.begin("", "Hi")], seed=0))
    alone = before.clone()
    for _ in range(16):
        alone += step
    assert alone.flatten()[largest] == before.flatten()[largest]  # without masters nothing happens
    moved = (weight.detach().float() - before.float()).flatten()[largest]
    assert moved == pytest.approx(16 * step, rel=0.3)


def test_gradients_are_added_up_in_float32(policy, folder):
    samples = policy.sample([policy.begin("", text) for text in ("Hi", "Write", "a program")], seed=0)
    loss(policy, samples[:1]).backward()
    first = [parameter.grad.clone() for parameter in policy.parameters()]
    loss(policy, samples[1:2]).backward()
    second = [parameter.grad for parameter in policy.parameters()]
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    alone = LanguageModelPolicy(folder, max_new_tokens=8, device="cpu", dtype=torch.bfloat16)
    loss(alone, samples[1:2]).backward()
    for before, after, other in zip(first, second, alone.parameters(), strict=True):
        assert torch.equal(after, before + other.grad)


def test_a_checkpoint_holds_the_masters(policy, tmp_path):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 1e-6
    again = LanguageModelPolicy(
        policy.save(tmp_path / "saved"), max_new_tokens=8, device="cpu", dtype=torch.bfloat16
    )
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))
    prompt = policy.begin("", "Hi")
    assert policy.sample([prompt], seed=0) == again.sample([prompt], seed=0)


def test_its_reference_holds_sixteen_bits_and_stays(policy):
    reference = policy.frozen_copy()
    assert {p.dtype for p in reference.model.parameters()} == {torch.bfloat16}
    samples = policy.sample([policy.begin("", "Hi")], seed=0)
    before = reference.log_probs(samples)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1
    assert torch.equal(reference.log_probs(samples), before)
    assert not torch.equal(policy.log_probs(samples).detach(), before)
