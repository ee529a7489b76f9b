"""The parts of a run are those that its config names."""

import sys

import pytest
import torch

from tests.stubs import CHATML, tiny_language_model
from tests.wmrl_envs.test_sources_mle_dojo import write_dojo
from wmrl_agents import GRPOTrainer
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import load_competitions, load_language_model, load_playing_policy, load_policy
from wmrl_envs.errors import CompetitionError, ConfigError, MissingExtraError


def test_a_chat_template_of_the_users_own(tmp_path):
    folder = tiny_language_model(tmp_path / "model")
    template = tmp_path / "template.jinja"
    template.write_text(CHATML.replace("<|im_start|>", "<|im_start|>so said the "), encoding="utf-8")
    plain = GRPOConfig(policy=str(folder), max_new_tokens=8)
    ids = [
        load_policy(config, config.policy).begin("", "hello").token_ids
        for config in (plain, plain.replace(chat_template=str(template)))
    ]
    assert ids[0] != ids[1]


def test_a_chat_template_that_is_not_there(tmp_path):
    config = GRPOConfig(policy=str(tiny_language_model(tmp_path / "model")), chat_template="none.jinja")
    with pytest.raises(ConfigError, match=r"chat_template: there is no file none\.jinja"):
        load_policy(config, config.policy)


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.04])
def test_the_policy_as_its_own_world_model(tmp_path, kl_coefficient):
    folder = tiny_language_model(tmp_path / "model")
    config = GRPOConfig(
        policy=str(folder),
        world_model="policy",
        sandbox="unsafe",
        device="cpu",
        max_new_tokens=8,
        max_turns=1,
        groups_per_step=2,
        group_size=2,
        steps=1,
        kl_coefficient=kl_coefficient,
        world_model_context=4096,
        world_model_max_new_tokens=8,
    )
    trainer = GRPOTrainer(config, tmp_path / "run")
    judge = world_model_weights(trainer)
    assert all(mine is not trained for mine, trained in zip(judge, trainer.policy.parameters(), strict=True))
    if kl_coefficient:  # the weights are held once
        pairs = zip(judge, trainer.learners.reference.parameters(), strict=True)
        assert all(mine is reference for mine, reference in pairs)
    begun = [weights.clone() for weights in judge]
    with torch.no_grad():
        for weights in trainer.policy.parameters():
            weights += 1.0
    trainer.next_step = 1
    trainer.save()
    assert all(map(torch.equal, judge, begun))
    resumed = GRPOTrainer(config, tmp_path / "run")
    assert all(map(torch.equal, world_model_weights(resumed), begun))
    assert not torch.equal(next(iter(resumed.policy.parameters())), begun[0])


def test_a_run_on_folders_of_mle_dojo(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path)
    config = GRPOConfig(data_root=str(data_root), dojo_root=str(dojo_root))
    assert [competition.name for competition in load_competitions(config)] == ["small-houses"]
    named = config.replace(competitions=("small-houses",))
    assert load_competitions(named) == load_competitions(config)
    with pytest.raises(CompetitionError, match="give its code tree as dojo_root"):
        load_competitions(config.replace(dojo_root=None))


def world_model_weights(trainer):
    return list(trainer.rollouts.predictor.world_model.model.model.parameters())


@pytest.mark.parametrize("name", ["vllm:some/model", "http://127.0.0.1:8000/v1#m", "https://host/v1#m"])
def test_what_only_answers_cannot_be_trained(name):
    with pytest.raises(ConfigError, match="cannot be trained: name a model directory"):
        load_policy(GRPOConfig(policy=name), name)


@pytest.mark.parametrize("load", [load_playing_policy, lambda config, name: load_language_model(config)])
def test_a_name_that_asks_for_vllm(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "vllm", None)
    config = GRPOConfig(world_model="vllm:tiny-coder?enforce_eager=true")
    with pytest.raises(MissingExtraError, match=r"wmrl\[vllm\]"):
        load(config, config.world_model)
    with pytest.raises(ConfigError, match="Name the model after 'vllm:'"):
        load(config.replace(world_model="vllm:"), "vllm:")


def test_settings_of_vllms_engine_follow_the_name(monkeypatch):
    opened = []
    monkeypatch.setattr(
        "wmrl_rewards.language_models.vllm_engine.VLLMModel",
        lambda *args, **named: opened.append((args, named)),
    )
    load_language_model(
        GRPOConfig(world_model="vllm:some/model?dtype=bfloat16&enforce_eager=true&max_num_seqs=8")
    )
    load_language_model(GRPOConfig(world_model="vllm:some/model?max_context=99", world_model_context=4096))
    assert opened == [
        (
            ("some/model",),
            {"max_context": 12288, "dtype": "bfloat16", "enforce_eager": True, "max_num_seqs": 8},
        ),
        (("some/model",), {"max_context": 99}),
    ]
