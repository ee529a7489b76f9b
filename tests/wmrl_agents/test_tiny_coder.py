"""The grammar's scripts do what their plans say, when they are really executed."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tests.stubs import tiny_language_model, tiny_tokenizer
from wmrl_agents.policies import resolve_model
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.tiny_coder import build
from wmrl_agents.policies.tiny_coder.auxiliary import write_auxiliary_tasks
from wmrl_agents.policies.tiny_coder.corpus import Execution, world_model_dialogues
from wmrl_agents.policies.tiny_coder.executions import execute_all
from wmrl_agents.policies.tiny_coder.grammar import MISTAKES, TaskShape, repair, sample_plan, write_script
from wmrl_agents.policies.tiny_coder.model import ASSISTANT, encode
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.prompts import AGENT_SYSTEM_PROMPT, task_text
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards import LanguageModelWorldModel, PredictionRequest, check_world_model
from wmrl_rewards.language_models import HuggingFaceModel, Message, Sampling

STATUS = {
    "missing_import": "error",
    "misspelt": "error",
    "wrong_file": "error",
    "wrong_target": "error",
    "no_submission": "no_submission",
    "unclosed": "error",
    "extra_column": "bad_columns",
}
COMPETITIONS = ("breast-cancer", "sms-spam", "digits")


def plans(competition, number, seed=0):
    shape = TaskShape(competition.category, competition.metric.prediction)
    rng = np.random.default_rng(seed)
    return [sample_plan(shape, rng) for _ in range(number)]


@pytest.mark.parametrize("name", COMPETITIONS)
def test_a_script_without_a_mistake_is_valid_and_one_with_a_mistake_fails_in_its_way(name):
    competition = load_competition(name)
    rng = np.random.default_rng(1)
    chosen = {plan.mistake: plan for plan in plans(competition, 300)}
    assert set(chosen) == {None, *MISTAKES}
    jobs = [(competition, write_script(plan, rng)) for plan in chosen.values()]
    for mistake, evaluation in zip(chosen, execute_all(jobs, workers=2), strict=True):
        if mistake is None:
            assert evaluation.status == "ok", evaluation
        elif mistake == "wrong_predictions":
            assert evaluation.status in ("error", "bad_values")
        else:
            assert evaluation.status == STATUS[mistake], (mistake, evaluation)


def test_repairing_removes_the_mistake_and_nothing_else():
    for plan in plans(load_competition("digits"), 50):
        repaired = repair(plan)
        assert repaired.mistake is None
        assert (repaired.model, repaired.steps, repaired.features) == (plan.model, plan.steps, plan.features)


def test_the_same_seed_writes_the_same_scripts():
    competition = load_competition("sms-spam")
    first, second = plans(competition, 20), plans(competition, 20)
    assert first == second
    rngs = np.random.default_rng(5), np.random.default_rng(5)
    assert [write_script(p, rngs[0]) for p in first] == [write_script(p, rngs[1]) for p in second]


def test_hasty_authors_fail_more_often():
    shape = TaskShape("tabular", "probability")
    rng = np.random.default_rng(0)
    share = {
        author: np.mean([sample_plan(shape, rng, author).mistake is not None for _ in range(400)])
        for author in ("careful", "hasty")
    }
    assert share["careful"] < 0.2 < 0.5 < share["hasty"]


def test_a_build_that_goes_on_keeps_the_leaderboards_that_the_panel_made(tmp_path):
    board = write_auxiliary_tasks(tmp_path)[0] / "private" / "public_leaderboard.csv"
    board.write_text("rank,score\n1,0.9\n2,0.8\n", encoding="utf-8")
    write_auxiliary_tasks(tmp_path)
    assert board.read_text(encoding="utf-8") == "rank,score\n1,0.9\n2,0.8\n"


@pytest.mark.parametrize("valid", [0, 1, 8])
def test_the_world_model_can_learn_from_any_mixture_of_failing_and_valid_scripts(valid):
    competition = load_competition("breast-cancer")
    good = Evaluation(Outcome("ok"), Grade("ok", score=0.9, percentile=0.5))
    bad = Evaluation(Outcome("error", stderr="NameError: name 'x' is not defined"))
    executions = [Execution(competition, None, "code", good if i < valid else bad) for i in range(8)]
    answers = [d[-1]["content"] for d in world_model_dialogues(executions, 400, np.random.default_rng(0))]
    share = np.mean([answer == "status: ok\nroc_auc: 0.90\npercentile: 0.50" for answer in answers])
    assert share == pytest.approx({0: 0.0, 1: 0.6, 8: 1.0}[valid], abs=0.08)


@pytest.mark.slow
def test_versions_4_and_5_of_transformers_know_the_tokenizers_class(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_language_model(tmp_path / "tiny"))
    build._save(model, tiny_tokenizer(), tmp_path / "built")
    names = ("tiny-coder", "tiny-coder-world-model")
    for folder in (tmp_path / "built", *(Path(resolve_model(name)) for name in names)):
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.fixture(scope="module")
def bundled():
    return LanguageModelWorldModel(
        HuggingFaceModel(resolve_model("tiny-coder-world-model"), device="cpu"),
        sampling=Sampling(max_new_tokens=64, temperature=0),
        max_context_tokens=1024,
        predict="percentile",
        retries=0,
    )


def test_the_bundled_world_model_keeps_the_contract(bundled):
    check_world_model(bundled)


def test_the_bundled_world_model_is_asked_in_the_words_that_it_was_trained_on(bundled):
    competition = load_competition("bike-hours")
    (plan,) = plans(competition, 1)
    code = write_script(plan, np.random.default_rng(0))
    execution = Execution(competition, plan, code, Evaluation(Outcome("ok"), Grade("no_submission")))
    words = task_text(competition)
    (trained,) = world_model_dialogues([execution], 1, np.random.default_rng(0))
    varied = trained[0]["content"].partition("\n\n```python\n")[0]
    (asked,) = bundled._question(PredictionRequest(words, code)).conversation()
    assert asked == {**trained[0], "content": trained[0]["content"].replace(varied, words)}
    ids = bundled.model.chat.prompt([asked])
    spelled = encode(bundled.model.tokenizer, [asked])[0]
    assert ids == [*spelled, bundled.model.tokenizer.vocab[ASSISTANT]]


def test_the_bundled_agent_is_asked_in_the_words_that_it_was_trained_on():
    policy = LanguageModelPolicy(resolve_model("tiny-coder"), max_new_tokens=8, device="cpu")
    task = task_text(load_competition("bike-hours"))
    spelled = encode(policy.tokenizer, [Message(role="user", content=task)])[0]
    expected = (*spelled, policy.tokenizer.vocab[ASSISTANT])
    assert policy.begin(AGENT_SYSTEM_PROMPT, task).token_ids == expected


def test_the_bundled_world_model_answers_in_the_form_that_it_was_trained_on(bundled):
    competitions = [load_competition(name) for name in ("bike-hours", "breast-cancer", "digits", "languages")]
    rng = np.random.default_rng(0)
    requests = [
        PredictionRequest(
            task_text(competition),
            write_script(plan, rng),
            context={"competition": competition},
        )
        for competition in competitions
        for plan in plans(competition, 12)
    ]
    assert [prediction.error for prediction in bundled.predict(requests)] == [None] * len(requests)
