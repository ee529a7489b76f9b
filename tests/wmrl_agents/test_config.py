import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_agents.grpo.config import (
    GRPOConfig,
    field_docs,
    load_preset,
    load_settings,
    preset_names,
    save_config,
)
from wmrl_envs.errors import ConfigError

PAPER_FIELDS = """
    groups_per_step group_size max_turns max_new_tokens max_observation_tokens temperature learning_rate
    kl_coefficient entropy_coefficient anchor_fraction min_pairs refit_every max_anchor_weight
    anchor_window warmup_groups world_model_context world_model_max_new_tokens
""".split()  # noqa: SIM905


def test_defaults_are_the_papers_settings():
    config = GRPOConfig()
    assert (config.groups_per_step, config.group_size, config.max_turns) == (8, 8, 4)
    assert (config.learning_rate, config.kl_coefficient, config.entropy_coefficient) == (1e-6, 0.04, 0.002)
    assert (config.min_pairs, config.refit_every, config.max_anchor_weight) == (200, 64, 4.0)
    assert (config.anchor_fraction, config.anchor_window, config.warmup_groups) == (0.1, 64, 8)
    assert (config.max_new_tokens, config.max_observation_tokens) == (4096, 1024)
    assert (config.world_model_context, config.world_model_max_new_tokens) == (12288, 1024)
    assert (config.temperature, config.loss_reduction, config.trajectory_score) == (1.0, "sum", "final")


@pytest.mark.parametrize("name", ["paper-4b", "paper-9b"])
def test_paper_presets_repeat_the_papers_hyperparameters(name):
    config = GRPOConfig.from_mapping(load_preset(name))
    paper = GRPOConfig()
    for field in PAPER_FIELDS:
        assert field in load_preset(name)
        assert getattr(config, field) == getattr(paper, field)
    assert config.timeout_s == 1200
    assert config.policy == f"Qwen/Qwen3.5-{name[-2:].upper()}"
    assert config.world_model == "policy"


def test_every_preset_is_a_config():
    assert {"smoke", "default", "paper-4b", "paper-9b"} <= set(preset_names())
    for name in preset_names():
        GRPOConfig.from_mapping(load_preset(name))


def test_every_field_has_a_sentence_for_the_help():
    docs = field_docs()
    assert list(docs) == [field.name for field in dataclasses.fields(GRPOConfig)]
    assert all(doc.endswith(".") for doc in docs.values())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"grup_size": 4}, "did you mean 'group_size'"),
        ({"zzz": 4}, "see `wmrl train --help`"),
        ({"top_p": 0.9}, "whole distribution"),
        ({"scale_rewards": "group"}, "never divided by their standard deviation"),
        ({"group_size": 1}, "group_size must be at least 2, not 1"),
        ({"group_size": True}, "whole number"),
        ({"steps": 2.5}, "whole number"),
        ({"steps": "many"}, "whole number"),
        ({"steps": None}, "whole number"),
        ({"steps": [3]}, "whole number"),
        ({"learning_rate": "fast"}, "must be a number"),
        ({"learning_rate": 0}, "above 0"),
        ({"learning_rate": float("nan")}, "finite"),
        ({"learning_rate": "inf"}, "finite"),
        ({"steps": "1e999"}, "whole number"),
        ({"temperature": -1}, "above 0"),
        ({"anchor_fraction": 1.5}, "at most 1"),
        ({"anchor_fraction": 0}, "above 0"),
        ({"recheck_fraction": 1.5}, "at most 1"),
        ({"recheck_fraction": -0.1}, "at least 0"),
        ({"timeout_s": 0}, "above 0"),
        ({"step_deadline_s": 0}, "above 0"),
        ({"on_infrastructure": "panic"}, "continue, stop"),
        ({"max_anchor_weight": 0.5}, "at least 1"),
        ({"presume_blind": True, "anchor_window": 2}, "2 groups of 8 may never show"),
        ({"reward_source": "oracle"}, "real, world_model, mixture, wmrl, anchors_alone"),
        ({"debias": "perhaps"}, "true or false"),
        ({"competitions": []}, "names nothing"),
        ({"competitions": 7}, "list of names"),
        ({"policy": ""}, "must be a text"),
        ({"policy": 7}, "must be a text"),
        ({"sandbox": "none"}, "bubblewrap, docker, unsafe"),
        ({"solution_image": "mine"}, "leave them out with bubblewrap"),
        ({"sandbox": "docker", "solution_python": "python3"}, "name an image instead"),
        ({"sandbox": "docker", "solution_gpus": [True]}, "list of names"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(settings, sentence):
    with pytest.raises(ConfigError) as caught:
        GRPOConfig.from_mapping(settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_from_yaml_and_the_command_line_become_values():
    config = GRPOConfig.from_mapping(
        {
            "learning_rate": "1e-3",
            "steps": "7",
            "debias": "false",
            "competitions": "digits, sms-spam",
            "threads": "none",
            "max_grad_norm": "1",
            "sandbox": "docker",
            "solution_gpus": "0, 1",
        }
    )
    assert (config.learning_rate, config.steps, config.debias) == (1e-3, 7, False)
    assert (config.competitions, config.threads, config.max_grad_norm) == (("digits", "sms-spam"), None, 1.0)
    assert config.solution_gpus == ("0", "1")


@given(
    learning_rate=st.floats(1e-9, 1, allow_nan=False),
    steps=st.integers(1, 10**6),
    competitions=st.none() | st.lists(st.sampled_from(["digits", "sms-spam"]), min_size=1).map(tuple),
    threads=st.none() | st.integers(1, 64),
    gpus=st.none() | st.lists(st.integers(0, 9), min_size=1),
)
def test_a_saved_config_reads_back_equal(tmp_path_factory, learning_rate, steps, competitions, threads, gpus):
    config = GRPOConfig(
        learning_rate=learning_rate,
        steps=steps,
        competitions=competitions,
        threads=threads,
        sandbox="docker",
        solution_gpus=gpus,
    )
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    save_config(config, path)
    assert GRPOConfig.from_mapping(load_settings(path)) == config


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"steps: [1, 2", "not valid YAML"),
        (b"- steps\n- 3\n", "must hold settings"),
        (b"just words", "must hold settings"),
        (b"\xff\xfe\x00", "config.yaml"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, content, sentence):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_preset_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no config file"):
        load_settings(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match=r"Unknown preset 'papr'.*smoke"):
        load_preset("papr")


def test_an_empty_file_means_the_defaults(tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    assert GRPOConfig.from_mapping(load_settings(tmp_path / "empty.yaml")) == GRPOConfig()
