"""A run that trains an adapter: one model in memory, and a resume that changes nothing."""

import pytest
import torch
from safetensors.torch import load_file

from tests.stubs import tiny_language_model
from wmrl_agents import GRPOTrainer
from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import load_policy
from wmrl_agents.policies import language_model


@pytest.fixture
def config(tmp_path):
    return GRPOConfig(
        policy=str(tiny_language_model(tmp_path / "model", max_context=2048)),
        world_model="policy",
        competitions=("breast-cancer",),
        sandbox="unsafe",
        device="cpu",
        lora_rank=2,
        max_new_tokens=8,
        max_turns=2,
        groups_per_step=2,
        group_size=2,
        steps=4,
        learning_rate=0.05,
        entropy_coefficient=0.1,  # replies of a random model are all worth 0
        world_model_context=4096,
        world_model_max_new_tokens=8,
        gradient_checkpointing=True,
        agent_prompt="with_example",
    )


def train(config, run_dir, steps):
    trainer = GRPOTrainer(config.replace(steps=steps), run_dir)
    trainer.train()
    trainer.close()
    return load_file(latest_checkpoint(run_dir).policy_dir / "adapter_model.safetensors")


def test_a_resumed_run_is_the_run_that_was_not_interrupted(config, tmp_path):
    whole = train(config, tmp_path / "whole", 4)
    begun = train(config, tmp_path / "parts", 2)
    parts = train(config, tmp_path / "parts", 4)
    assert whole.keys() == parts.keys() == begun.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not all(torch.equal(whole[name], begun[name]) for name in whole)


def test_the_base_is_held_once_also_after_a_resume(config, tmp_path, monkeypatch):
    loads = []
    load = language_model.HuggingFaceModel
    monkeypatch.setattr(language_model, "HuggingFaceModel", lambda *a, **k: loads.append(a) or load(*a, **k))
    train(config, tmp_path / "run", 1)
    train(config, tmp_path / "run", 2)
    assert len(loads) == 2  # one for each of the two trainers: policy, reference and world model


def test_a_checkpoint_can_be_evaluated(config, tmp_path):
    train(config, tmp_path / "run", 1)
    saved = latest_checkpoint(tmp_path / "run").policy_dir
    trained = load_policy(config, saved)
    start = load_policy(config, config.policy)
    prompt = start.begin("", "Hi")
    samples = trained.sample([prompt], seed=0)
    assert not torch.equal(trained.log_probs(samples), start.log_probs(samples))
    # Without the run's settings its directory says what it is.
    merged = load_policy(config.replace(policy=str(saved), lora_rank=None), str(saved))
    torch.testing.assert_close(merged.log_probs(samples), trained.log_probs(samples), rtol=0, atol=1e-4)
