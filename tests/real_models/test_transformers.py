"""Two real language models through Transformers: what a tiny random one cannot show."""

import os
from pathlib import Path

import pytest
import torch

from wmrl_agents.grpo.gradients import accumulate_gradients
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.low_rank import LoRAConfig
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_rewards import LanguageModelWorldModel, PredictionRequest, check_world_model
from wmrl_rewards.language_models import HuggingFaceModel, Sampling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("WMRL_TEST_MODELS" not in os.environ, reason="`make test-models` runs this"),
]
FOLDER = Path(os.environ.get("WMRL_TEST_MODELS", "."))
SAMPLED = Sampling(max_new_tokens=12, temperature=1.0, seed=0)
CONVERSATIONS = [
    [
        {"role": "system", "content": "You write Python."},
        {"role": "user", "content": "Read train.csv with pandas."},
    ],
    [{"role": "user", "content": "How are you? 你好 🙂"}],
]
PROGRAM = "import pandas as pd\nprint(pd.read_csv('nowhere.csv'))\n"


@pytest.fixture(scope="module", params=["smollm2", "qwen-coder"])
def model(request):
    return HuggingFaceModel(FOLDER / request.param, device="cpu", dtype=torch.float32)


def test_the_log_probabilities_of_a_padded_batch_are_those_of_plain_forward_passes(model):
    replies = model.generate(CONVERSATIONS, SAMPLED, samples=2)
    for conversation, group in zip(CONVERSATIONS, replies, strict=True):
        prompt = model.chat.prompt(conversation)
        for reply in group:
            ids = torch.tensor([[*prompt, *reply.token_ids]])
            with torch.no_grad():
                logits = model.model(ids).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
            assert list(reply.log_probs) == pytest.approx(expected.tolist(), abs=1e-3)


def test_a_reply_depends_on_its_prompt_and_the_seed_alone(model):
    _, together = model.generate(CONVERSATIONS, SAMPLED, samples=2)
    (alone,) = model.generate(CONVERSATIONS[1:], SAMPLED, samples=2)
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-3)
    assert together[0].token_ids != together[1].token_ids


def test_a_policy_computes_the_log_probabilities_that_it_sampled_with():
    policy = LanguageModelPolicy(FOLDER / "smollm2", max_new_tokens=12, device="cpu")
    texts = ("Read train.csv.", "Print the sum of 1 and 2, and then that of 3 and 4.")
    samples = policy.sample([policy.begin("You write Python.", text) for text in texts], seed=3)
    with torch.no_grad():
        computed = policy.log_probs(samples)
    for sample, row in zip(samples, computed, strict=True):
        own = torch.tensor(sample.mask[1:])
        recorded = torch.tensor(sample.log_probs[1:])
        assert own.any()
        torch.testing.assert_close(row[: len(own)][own], recorded[own], atol=1e-3, rtol=0)


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=8)], ids=["all weights", "adapter"])
def test_a_policy_of_two_turns_trains_what_it_sampled(lora, tmp_path):
    """Two turns on two tasks whose beginnings are shared; one update, which the next sample has seen."""
    policy = LanguageModelPolicy(FOLDER / "smollm2", max_new_tokens=12, device="cpu", lora=lora)
    texts = ("Read train.csv.", "Print the sum of 1 and 2, and then that of 3 and 4.")
    first = policy.sample([policy.begin("You write Python.", text) for text in texts for _ in "ab"], seed=1)
    samples = policy.sample([policy.extend(sample, "status: error") for sample in first], seed=2)
    for before, after in zip(first, samples, strict=True):
        size = len(before.token_ids)
        assert (after.token_ids[:size], after.mask[:size]) == (before.token_ids, before.mask)
    with torch.no_grad():
        computed = policy.token_statistics(samples).log_probs
    for sample, row in zip(samples, computed, strict=True):
        own = torch.tensor(sample.mask[1:])
        assert own.sum() == sum(sample.mask)
        torch.testing.assert_close(
            row[: len(own)][own], torch.tensor(sample.log_probs[1:])[own], atol=1e-3, rtol=0
        )

    # Plain forward passes, row by row, as an independent way to the gradient of the weighted sum.
    coefficients = [0.5, -0.5, 0.25, -0.25]
    accumulate_gradients(policy, samples, coefficients, micro_batch=4)
    found = torch.cat([p.grad.flatten() for p in policy.parameters()])
    for parameter in policy.parameters():
        parameter.grad = None
    for sample, coefficient in zip(samples, coefficients, strict=True):
        ids = torch.tensor([sample.token_ids])
        log_probs = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (-coefficient * log_probs[torch.tensor(sample.mask[1:])].sum()).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert expected.norm() > 0
    assert (found - expected).norm() < 1e-3 * expected.norm()

    def gain():
        with torch.no_grad():
            sums = policy.token_statistics(samples).log_probs.sum(dim=1)
        return float((sums * torch.tensor(coefficients)).sum())

    start = gain()
    torch.optim.AdamW(policy.parameters(), lr=1e-3 if lora else 1e-5).step()
    assert gain() > start
    (again,) = policy.sample([policy.begin("You write Python.", texts[0])], seed=1)
    assert again.version == first[0].version + 1
    path = policy.save(tmp_path / "saved")
    settings = {"max_new_tokens": 12, "device": "cpu", "lora": lora}
    if lora is None:
        loaded = LanguageModelPolicy(path, **settings)
    else:
        loaded = LanguageModelPolicy(FOLDER / "smollm2", adapter=path, **settings)
    (same,) = loaded.sample([loaded.begin("You write Python.", texts[0])], seed=1)
    assert same.token_ids == again.token_ids


def test_predictions_on_bundled_tasks(model):
    names = ("digits", "sms-spam")
    competitions = [load_competition(name) for name in names]
    requests = [
        PredictionRequest(task_text(competition), PROGRAM, context={"competition": competition})
        for competition in competitions
    ]
    greedy = Sampling(max_new_tokens=16, temperature=0)
    world_model = LanguageModelWorldModel(model, sampling=greedy, max_context_tokens=1024, retries=0)
    for prediction in world_model.predict(requests):
        assert (prediction.score is None) == (prediction.error is not None)
        assert (prediction.score is None) == (prediction.outcome is None)
        assert 300 < prediction.prompt_tokens < 1024
        assert 0 < prediction.new_tokens <= 16


def test_the_contract():
    model = HuggingFaceModel(FOLDER / "smollm2", device="cpu", dtype=torch.float32)
    sampling = Sampling(max_new_tokens=8, temperature=0)
    settings = {"max_context_tokens": 256, "system_prompt": "Say how the program ends.", "retries": 0}
    check_world_model(LanguageModelWorldModel(model, sampling=sampling, **settings))
