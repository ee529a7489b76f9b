"""LoRA: an adapter beside the base, the base below it, and both as one plain model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.stubs import tiny_language_model
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.low_rank import LoRAConfig, merged_weights
from wmrl_agents.policies.sampler import TransformersSampler
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models import loading
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

LORA = LoRAConfig(rank=3, alpha=6, seed=1)


@pytest.fixture
def folder(tmp_path):
    return tiny_language_model(tmp_path / "base")


def load(folder, **settings):
    settings = {"lora": LORA} | settings
    return LanguageModelPolicy(folder, max_new_tokens=12, device="cpu", **settings)


def move(policy):
    generator = torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)


def prompts(policy):
    return [policy.begin("Be brief.", text) for text in ("Hi", "Write a program.")]


def test_it_begins_exactly_at_the_base(folder):
    adapted, plain = load(folder), load(folder, lora=None)
    assert adapted.sample(prompts(adapted), seed=0) == plain.sample(prompts(plain), seed=0)


def test_only_the_adapter_is_trained(folder):
    policy = load(folder)
    trained = {id(parameter) for parameter in policy.parameters()}
    names = [name for name, parameter in policy.model.named_parameters() if id(parameter) in trained]
    # Two layers of seven linear maps with two matrices each; the output layer has none.
    assert len(names) == 2 * 7 * 2
    assert all(".lora_" in name and "lm_head" not in name for name in names)
    loss = policy.token_statistics(policy.sample(prompts(policy), seed=0)).log_probs.sum()
    loss.backward()
    with_gradient = [name for name, p in policy.model.named_parameters() if p.grad is not None]
    assert sorted(with_gradient) == sorted(names)


def test_its_beginning_is_a_function_of_the_seed(folder):
    torch.manual_seed(1)
    first = [p.clone() for p in load(folder).parameters()]
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = list(load(folder).parameters())
    other = list(load(folder, lora=LoRAConfig(3, 6, seed=9)).parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, other))


def test_the_reference_is_the_base_and_takes_no_memory(folder):
    policy, plain = load(folder), load(folder, lora=None)
    reference = policy.frozen_copy()
    assert policy.keeps_start
    assert all(
        mine is its for mine, its in zip(policy.model.parameters(), reference.model.parameters(), strict=True)
    )
    move(policy)
    samples = policy.sample(prompts(policy), seed=0)
    torch.testing.assert_close(reference.log_probs(samples), plain.log_probs(samples), rtol=0, atol=0)
    with_base = policy.token_statistics(samples, reference).kl
    torch.testing.assert_close(with_base, policy.token_statistics(samples, plain.frozen_copy()).kl)
    assert with_base.sum() > 1e-3
    with_base.sum().backward()
    assert all(parameter.grad.any() for parameter in policy.parameters() if parameter.requires_grad)


def test_the_world_model_below_an_adapter_is_the_base(folder):
    policy, plain = load(folder), HuggingFaceModel(folder, device="cpu", dtype=torch.float32)
    below = policy.frozen_copy().language_model
    move(policy)
    question = [[{"role": "user", "content": "Hi"}]]
    from wmrl_rewards.language_models.base import Sampling

    sampling = Sampling(max_new_tokens=12, seed=3)
    assert below.generate(question, sampling) == plain.generate(question, sampling)
    assert policy.language_model.generate(question, sampling) != plain.generate(question, sampling)
    # Stored predictions are found again after a resume, when the adapter has other values.
    assert below.fingerprint == plain.fingerprint


def test_a_checkpoint_holds_the_adapter_and_names_its_base(folder, tmp_path):
    policy = load(folder)
    move(policy)
    saved = policy.save(tmp_path / "saved")
    assert not (saved / "model.safetensors").exists()
    assert sum(t.numel() for t in load_file(saved / "adapter_model.safetensors").values()) == sum(
        parameter.numel() for parameter in policy.parameters()
    )
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
    again = load(folder, adapter=saved)
    assert again.sample(prompts(again), seed=0) == policy.sample(prompts(policy), seed=0)


def test_other_programs_read_it(folder, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy = load(folder)
    move(policy)
    (sample,) = policy.sample(prompts(policy)[:1], seed=0)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder), policy.save(tmp_path / "a")
    )
    ids = torch.tensor([sample.token_ids])
    torch.testing.assert_close(model(ids).logits, policy.model(ids).logits)


def test_a_saved_adapter_is_a_model_to_evaluate_or_to_begin_with(folder, tmp_path):
    policy = load(folder)
    move(policy)
    saved = policy.save(tmp_path / "saved")
    merged = load(saved, lora=None)
    samples = policy.sample(prompts(policy), seed=0)
    torch.testing.assert_close(merged.log_probs(samples), policy.log_probs(samples), rtol=0, atol=1e-4)
    assert merged.begin("a", "b") == policy.begin("a", "b")
    second = load(saved)  # another adapter on top: its reference is the first one's end
    torch.testing.assert_close(second.frozen_copy().log_probs(samples), merged.log_probs(samples))


def test_merged_weights_are_those_of_a_plain_model_that_computes_the_same(folder):
    policy = load(folder)
    move(policy)
    plain = load(folder, lora=None)
    TransformersSampler(plain.language_model).load_weights(merged_weights(policy.model), 1)
    samples = policy.sample(prompts(policy), seed=0)
    torch.testing.assert_close(plain.log_probs(samples), policy.log_probs(samples), rtol=0, atol=1e-4)


def test_an_adapter_of_another_size_is_refused(folder, tmp_path):
    saved = load(folder).save(tmp_path / "saved")
    with pytest.raises(WMRLError, match="of another rank than the one asked for, or for another model"):
        load(folder, lora=LoRAConfig(4), adapter=saved)
    with pytest.raises(WMRLError, match="holds no adapter"):
        load(folder, adapter=folder)


def test_an_adapter_that_names_no_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(WMRLError, match="does not name a base model"):
        load(tmp_path, lora=None)


@pytest.mark.parametrize(("rank", "alpha"), [(0, 8), (4, 0), (4, float("nan"))])
def test_sizes_that_make_no_sense(rank, alpha):
    with pytest.raises(ConfigError, match="of an adapter must be"):
        LoRAConfig(rank, alpha)


def test_without_peft_one_sentence_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(WMRLError, match=r"pip install 'wmrl\[lora\]'"):
        load(folder)


def test_a_sixteen_bit_base_has_a_float32_adapter(folder):
    policy = load(folder, dtype=torch.bfloat16)
    assert policy.model.lm_head.weight.dtype == torch.bfloat16
    assert all(parameter.dtype == torch.float32 for parameter in policy.parameters())
    samples = policy.sample(prompts(policy) * 4, seed=0)
    recorded = [torch.tensor(s.log_probs[1:]) for s in samples]
    for row, sample, log_probs in zip(policy.log_probs(samples).detach(), samples, recorded, strict=True):
        own = torch.tensor(sample.mask[1:])
        assert (row[: len(own)] - log_probs)[own].abs().mean() < 0.05


def test_a_folder_is_named_by_its_whole_path(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    saved = load(Path(folder.name)).save(tmp_path / "saved")
    assert loading.base_of(saved) == str(folder)
