"""The trainable policy: what is trained is what was sampled, token by token."""

import copy
from dataclasses import replace

import pytest
import torch

from tests.stubs import CHATML, tiny_language_model
from wmrl_agents.policies import token_statistics as statistics_module
from wmrl_agents.policies.base import Policy, Prompt, Sample
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_envs.errors import ConfigError, WMRLError

OBSERVATION = "status: ok\nroc_auc: 0.9712"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_language_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def policy(folder):
    return LanguageModelPolicy(folder, max_new_tokens=24, temperature=0.7, device="cpu")


@pytest.fixture(scope="module")
def exact(folder):
    """The same policy in double precision."""
    return LanguageModelPolicy(folder, max_new_tokens=24, temperature=0.7, device="cpu", dtype=torch.float64)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    other = tiny_language_model(tmp_path_factory.mktemp("reference"), seed=1)
    return LanguageModelPolicy(other, max_new_tokens=24, temperature=0.7, device="cpu", dtype=torch.float64)


@pytest.fixture(scope="module")
def samples(policy):
    """Four records of two turns, of different lengths, some cut off and some not."""
    first = policy.sample([policy.begin("Be brief.", "Hi"), policy.begin("", "Write a program.")] * 2, seed=3)
    second = policy.sample([policy.extend(sample, OBSERVATION) for sample in first], seed=4)
    assert len({len(sample.token_ids) for sample in second}) > 1
    return second


def by_hand(policy, record, temperature=0.7):
    """Log-softmax over the vocabulary before each token but the first: one record, no padding, no tricks."""
    logits = policy.model(torch.tensor([record.token_ids])).logits[0, :-1]
    return (logits / temperature).log_softmax(-1)


def own(record):
    return torch.tensor(record.mask[1:])


def test_it_is_a_policy(policy):
    assert isinstance(policy, Policy)
    assert policy.max_context == 512
    assert policy.max_new_tokens == 24


def test_a_record_only_grows_and_the_mask_tells_whose_tokens_they_are(policy):
    prompt = policy.begin("Be brief.", "Hi")
    assert not any(prompt.mask)
    assert policy.tokenizer.decode(prompt.token_ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    (sample,) = policy.sample([prompt], seed=0)
    size = len(prompt.token_ids)
    assert sample.token_ids[:size] == prompt.token_ids
    assert all(sample.mask[size:])
    assert not any(sample.mask[:size])
    assert sample.text == policy.language_model.decode(sample.token_ids[size:])
    extended = policy.extend(sample, OBSERVATION)
    size = len(sample.token_ids)
    assert extended.token_ids[:size] == sample.token_ids
    assert extended.mask[:size] == sample.mask
    assert extended.log_probs[:size] == sample.log_probs
    assert not any(extended.mask[size:])
    assert set(extended.log_probs[size:]) == {0.0}


def test_only_a_reply_that_was_cut_off_is_closed_by_us(policy):
    prompt = policy.begin("", "Hi")
    reply = policy.tokenizer("import os").input_ids
    (end,) = policy.tokenizer("<|im_end|>").input_ids
    (other_end,) = policy.tokenizer("<|endoftext|>").input_ids
    rest = policy.tokenizer(f"\n<|im_start|>user\n{OBSERVATION}<|im_end|>\n<|im_start|>assistant\n").input_ids

    def appended(*ids):
        own_tokens = (*reply, *ids)
        sample = Sample(
            prompt.token_ids + own_tokens,
            prompt.mask + (True,) * len(own_tokens),
            prompt.log_probs + (-1.0,) * len(own_tokens),
        )
        extended = policy.extend(sample, OBSERVATION)
        assert sum(extended.mask) == len(own_tokens)
        return list(extended.token_ids[len(sample.token_ids) :])

    assert appended(end) == rest
    assert appended() == [end, *rest]
    assert appended(other_end) == [end, *rest]


def test_sampling_is_a_function_of_prompt_and_seed(policy):
    prompts = [policy.begin("", "Hi"), policy.begin("", "Write a program."), policy.begin("", "Hi")]
    samples = policy.sample(prompts, seed=9)
    assert samples == policy.sample(prompts, seed=9)
    assert samples[0].token_ids != samples[2].token_ids
    assert samples[1].token_ids == policy.sample(prompts[1:2], seed=9)[0].token_ids
    assert samples[1].token_ids != policy.sample(prompts[1:2], seed=10)[0].token_ids


def test_log_probabilities_are_the_recorded_ones(policy, samples):
    for computed in (policy.log_probs(samples), policy.token_statistics(samples).log_probs):
        for row, sample in zip(computed, samples, strict=True):
            recorded = torch.tensor(sample.log_probs[1:])
            difference = (row[: len(recorded)] - recorded)[own(sample)]
            assert difference.abs().max() < 1e-4
            assert len(difference) == sample.num_own_tokens


def test_sixteen_bit_weights_stay_close(folder):
    policy = LanguageModelPolicy(
        folder, max_new_tokens=24, temperature=0.6, device="cpu", dtype=torch.bfloat16
    )
    samples = policy.sample([policy.begin("", "Hi")] * 8, seed=0)
    statistics = policy.token_statistics(samples)
    recorded = torch.tensor([[*s.log_probs[1:], *[0.0] * 99][: statistics.mask.shape[1]] for s in samples])
    assert (statistics.log_probs - recorded)[statistics.mask].abs().mean() < 0.05


def test_log_probs_cover_every_token_and_are_padded_with_zeros(exact, samples):
    computed = exact.log_probs(samples)
    longest = max(len(sample.token_ids) for sample in samples)
    assert computed.shape == (len(samples), longest - 1)
    for row, sample in zip(computed, samples, strict=True):
        size = len(sample.token_ids) - 1
        expected = by_hand(exact, sample).gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0]
        torch.testing.assert_close(row[:size], expected, rtol=0, atol=1e-12)
        assert not row[size:].any()


def test_statistics_are_exact_sums_over_the_vocabulary(exact, reference, samples):
    statistics = exact.token_statistics(samples, reference, entropy=True)
    for i, sample in enumerate(samples):
        log_p, log_q, mask = by_hand(exact, sample), by_hand(reference, sample), own(sample)
        expected = {
            "log_probs": log_p.gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0],
            "kl": (log_p.exp() * (log_p - log_q)).sum(-1),
            "entropy": -(log_p.exp() * log_p).sum(-1),
        }
        size = len(mask)
        assert torch.equal(statistics.mask[i, :size], mask)
        assert not statistics.mask[i, size:].any()
        for name, values in expected.items():
            row = getattr(statistics, name)[i]
            torch.testing.assert_close(row[:size][mask], values[mask], rtol=0, atol=1e-11)
            assert not row[~statistics.mask[i]].any()


@pytest.mark.parametrize("name", ["log_probs", "kl", "entropy"])
def test_gradients_are_those_of_the_own_tokens_alone(exact, reference, samples, name):
    weights = torch.linspace(-1, 2, len(samples), dtype=torch.float64)

    def gradient(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(exact.parameters()))])

    statistics = exact.token_statistics(samples, reference, entropy=True)
    computed = gradient((getattr(statistics, name).sum(1) * weights).sum())
    loss = torch.zeros((), dtype=torch.float64)
    for weight, sample in zip(weights, samples, strict=True):
        log_p, log_q = by_hand(exact, sample), by_hand(reference, sample).detach()
        per_token = {
            "log_probs": log_p.gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0],
            "kl": (log_p.exp() * (log_p - log_q)).sum(-1),
            "entropy": -(log_p.exp() * log_p).sum(-1),
        }[name]
        loss = loss + weight * per_token[own(sample)].sum()
    expected = gradient(loss)
    assert expected.norm() > 0.1
    assert (computed - expected).norm() < 1e-10 * expected.norm()


def test_the_gradient_of_kl_is_that_of_finite_differences(exact, reference, samples):
    weight = exact.model.lm_head.weight
    loss = exact.token_statistics(samples, reference).kl.sum()
    (gradient,) = torch.autograd.grad(loss, weight)
    direction = torch.sin(torch.arange(weight.numel(), dtype=torch.float64)).view_as(weight)
    values = []
    for step in (1e-5, -1e-5):
        moved = copy.copy(exact)
        moved.language_model = copy.copy(exact.language_model)
        moved.language_model.model = copy.deepcopy(exact.model)
        with torch.no_grad():
            moved.model.lm_head.weight += step * direction
            values.append(moved.token_statistics(samples, reference).kl.sum().item())
    assert (gradient * direction).sum().item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_padding_and_company_change_nothing(exact, reference, samples):
    together = exact.token_statistics(samples, reference, entropy=True)
    first = samples[0]
    longer = Prompt(first.token_ids * 3, first.mask * 3, first.log_probs * 3)
    padded = exact.token_statistics([*samples, longer], reference, entropy=True)
    width = together.mask.shape[1]
    for name in ("log_probs", "kl", "entropy"):
        whole = getattr(together, name)
        torch.testing.assert_close(getattr(padded, name)[:-1, :width], whole, rtol=0, atol=1e-12)
        for i, sample in enumerate(samples):
            alone = getattr(exact.token_statistics([sample], reference, entropy=True), name)
            torch.testing.assert_close(alone[0], whole[i, : alone.shape[1]], rtol=0, atol=1e-12)


def test_blocks_change_nothing(exact, reference, samples, monkeypatch):
    def result():
        s = exact.token_statistics(samples, reference, entropy=True)
        gradient = torch.autograd.grad((s.log_probs + s.kl + s.entropy).sum(), list(exact.parameters()))
        return [s.log_probs, s.kl, s.entropy, *gradient]

    whole = result()
    monkeypatch.setattr(statistics_module, "_BLOCK_ELEMENTS", 7 * 320)
    for piece, expected in zip(result(), whole, strict=True):
        torch.testing.assert_close(piece, expected, rtol=1e-12, atol=1e-12)


def test_only_what_is_asked_for_is_computed(policy, samples):
    statistics = policy.token_statistics(samples)
    assert statistics.kl is None
    assert statistics.entropy is None


def test_the_output_layer_sees_own_tokens_only(policy, samples):
    shapes = []
    handle = policy.model.lm_head.register_forward_hook(lambda layer, inputs, out: shapes.append(out.shape))
    policy.token_statistics(samples)
    handle.remove()
    assert shapes == [(1, sum(sample.num_own_tokens for sample in samples), 320)]


def test_a_record_without_own_tokens_counts_for_nothing(exact, reference, samples):
    strangers = [replace(sample, mask=(False,) * len(sample.mask)) for sample in samples]
    statistics = exact.token_statistics(strangers, reference, entropy=True)
    total = (statistics.log_probs + statistics.kl + statistics.entropy).sum()
    assert total.item() == 0
    gradients = torch.autograd.grad(total, list(exact.parameters()), allow_unused=True)
    assert all(g is None or not g.any() for g in gradients)


def test_a_frozen_copy_stays_while_the_policy_moves(folder):
    policy = LanguageModelPolicy(folder, max_new_tokens=8, device="cpu")
    reference = policy.frozen_copy()
    samples = policy.sample([policy.begin("", "Hi")] * 4, seed=0)
    before = policy.token_statistics(samples, reference)
    assert before.kl.abs().max() < 1e-6
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    before.log_probs.sum().neg().backward()
    assert all(parameter.grad is None for parameter in reference.parameters())
    torch.optim.SGD(policy.parameters(), lr=0.05).step()
    after = policy.token_statistics(samples, reference)
    assert (after.kl[after.mask] > 1e-4).all()
    torch.testing.assert_close(reference.token_statistics(samples).log_probs, before.log_probs)


def test_new_weights_are_used_at_once(folder):
    policy = LanguageModelPolicy(folder, max_new_tokens=6, device="cpu")
    prompt = policy.begin("", "Hi")
    policy.sample([prompt], seed=0)
    with torch.no_grad():
        policy.model.lm_head.weight.zero_()  # all logits equal: every token has probability 1 / 320
    (sample,) = policy.sample([prompt], seed=0)
    expected = -torch.log(torch.tensor(320.0)).item()
    assert sample.log_probs[-1] == pytest.approx(expected)


def test_dropout_is_off_in_sampling_and_training(tmp_path):
    folder = tiny_language_model(tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"attention_dropout": 0.0', '"attention_dropout": 0.9')
    )
    policy = LanguageModelPolicy(folder, max_new_tokens=8, device="cpu")
    policy.model.train()
    (sample,) = policy.sample([policy.begin("", "Hi")], seed=0)
    policy.model.train()
    statistics = policy.token_statistics([sample])
    recorded = torch.tensor(sample.log_probs[1:])
    torch.testing.assert_close(statistics.log_probs[0], recorded, rtol=0, atol=1e-4)


def test_saving_and_loading_gives_the_same_policy(tmp_path, folder):
    template = CHATML.replace("assistant\n", "assistant: ")
    policy = LanguageModelPolicy(folder, max_new_tokens=12, device="cpu", chat_template=template)
    with torch.no_grad():
        policy.model.lm_head.weight += 0.1
    saved = policy.save(tmp_path / "saved")
    assert (saved / "model.safetensors").is_file()
    again = LanguageModelPolicy(saved, max_new_tokens=12, device="cpu")
    prompts = [policy.begin("Be brief.", "Hi")] * 3
    assert again.begin("Be brief.", "Hi") == prompts[0]
    assert again.sample(prompts, seed=1) == policy.sample(prompts, seed=1)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"top_p": 0.9}, "top_p must be 1, not 0.9"),
        ({"temperature": 0.0}, "temperature of a policy must be above 0"),
        ({"temperature": float("nan")}, "temperature of a policy must be above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_settings_that_cannot_be_trained_with_are_refused(folder, setting, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LanguageModelPolicy(folder, **({"max_new_tokens": 8} | setting))


def test_a_prompt_without_room_for_a_reply_is_an_error(policy):
    with pytest.raises(WMRLError, match="24 new ones are asked for: the model's context holds 512"):
        policy.sample([policy.begin("", "x" * 480)], seed=0)


def test_a_template_that_rewrites_is_refused_only_in_the_second_turn(tmp_path):
    template = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
    policy = LanguageModelPolicy(
        tiny_language_model(tmp_path, chat_template=template), max_new_tokens=4, device="cpu"
    )
    (sample,) = policy.sample([policy.begin("", "Hi")], seed=0)
    with pytest.raises(WMRLError, match="rewrites earlier turns"):
        policy.extend(sample, OBSERVATION)


def test_a_record_has_one_length():
    with pytest.raises(ValueError, match="of one length"):
        Prompt((1, 2), (True,), (0.0, 0.0))
