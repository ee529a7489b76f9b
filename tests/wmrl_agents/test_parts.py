"""The parts of a run are those that its config names."""

import pytest

from tests.stubs import CHATML, tiny_language_model
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import load_policy
from wmrl_envs.errors import ConfigError


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
