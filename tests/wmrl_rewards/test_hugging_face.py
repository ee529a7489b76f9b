"""Local generation: the right distribution, reproducible, independent of the batch, honest about its ends."""

import json
from functools import wraps

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GenerationConfig

from tests.stubs import CHATML, tiny_language_model, tiny_tokenizer
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models import HuggingFaceModel, LanguageModel, Sampling, hugging_face
from wmrl_rewards.language_models.hugging_face import _inverse_cdf

CONVERSATIONS = [
    [{"role": "user", "content": text}]
    for text in ("Hi", "Write one program in a block.", "import os\nimport pandas as pd\n" * 3)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_language_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return HuggingFaceModel(folder, device="cpu")


def logits_after(model, ids):
    """Logits of the next token by one plain forward pass: no cache, no padding."""
    with torch.no_grad():
        return model.model(torch.tensor([ids])).logits[0, -1]


def test_it_is_a_language_model(model):
    assert isinstance(model, LanguageModel)
    assert model.max_context == 512
    assert model.count_tokens("status: ok") == len(model.tokenizer("status: ok").input_ids)


def test_greedy_replies_of_a_padded_batch_are_those_of_single_forward_passes(model):
    replies = model.generate(CONVERSATIONS, Sampling(max_new_tokens=8, temperature=0))
    for conversation, (reply,) in zip(CONVERSATIONS, replies, strict=True):
        ids = model.chat.prompt(conversation)
        for token, log_prob in zip(reply.token_ids, reply.log_probs, strict=True):
            logits = logits_after(model, ids)
            assert token == int(logits.argmax())
            assert log_prob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
            ids.append(token)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_log_probabilities_are_those_of_the_sampling_distribution(model, temperature):
    sampling = Sampling(max_new_tokens=12, temperature=temperature, seed=1)
    replies = model.generate(CONVERSATIONS, sampling, samples=3)
    for conversation, group in zip(CONVERSATIONS, replies, strict=True):
        for reply in group:
            ids = model.chat.prompt(conversation)
            for token, log_prob in zip(reply.token_ids, reply.log_probs, strict=True):
                expected = (logits_after(model, ids) / temperature).log_softmax(-1)[token]
                assert log_prob == pytest.approx(float(expected), abs=1e-4)
                ids.append(token)


def test_tokens_come_as_often_as_their_probability_says(model):
    (replies,) = model.generate(CONVERSATIONS[:1], Sampling(max_new_tokens=1, seed=0), samples=4000)
    counts = np.bincount([reply.token_ids[0] for reply in replies], minlength=len(model.tokenizer))
    logits = logits_after(model, model.chat.prompt(CONVERSATIONS[0]))
    expected = 4000 * logits.double().softmax(-1).numpy()
    common = expected > 5
    chi2 = ((counts - expected)[common] ** 2 / expected[common]).sum()
    # Mean and standard deviation of chi-square with k degrees of freedom: k and sqrt(2 k).
    assert common.sum() > 20
    assert abs(chi2 - common.sum()) < 4 * np.sqrt(2 * common.sum())


def test_top_p_keeps_the_smallest_sufficient_set_and_normalises(model):
    (replies,) = model.generate(CONVERSATIONS[:1], Sampling(max_new_tokens=1, top_p=0.3, seed=0), samples=500)
    probabilities = logits_after(model, model.chat.prompt(CONVERSATIONS[0])).double().softmax(-1)
    ordered, order = probabilities.sort(descending=True)
    size = int((ordered.cumsum(0) < 0.3).sum()) + 1
    kept = {
        int(token): float(p / ordered[:size].sum()) for token, p in zip(order[:size], ordered, strict=False)
    }
    seen = {reply.token_ids[0]: reply.log_probs[0] for reply in replies}
    assert seen.keys() == kept.keys()
    for token, log_prob in seen.items():
        assert log_prob == pytest.approx(np.log(kept[token]), abs=1e-4)


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.1, 1.0, 7.0]), min_size=1, max_size=8).filter(any),
    noise=st.sampled_from([0.0, 1e-17, 1 - 2.0**-50]) | st.floats(0, 1 - 2.0**-50),
)
def test_a_token_of_probability_zero_is_never_drawn(weights, noise):
    log_probs = torch.tensor([weights], dtype=torch.float64).log().log_softmax(-1)
    chosen = int(_inverse_cdf(log_probs, torch.tensor([noise], dtype=torch.float64)))
    assert weights[chosen] > 0
    assert sum(weights[:chosen]) <= noise * sum(weights) + 1e-12


def test_a_seed_fixes_the_replies_and_nothing_else_matters(model, folder):
    sampling = Sampling(max_new_tokens=10, seed=7)
    replies = model.generate(CONVERSATIONS, sampling, samples=2)
    tokens = [[reply.token_ids for reply in group] for group in replies]
    assert replies == model.generate(CONVERSATIONS, sampling, samples=2)
    assert len({ids for group in tokens for ids in group}) == 6

    def tokens_of(model, conversations, samples):
        return [[r.token_ids for r in group] for group in model.generate(conversations, sampling, samples)]

    assert tokens_of(model, CONVERSATIONS[::-1], 2) == tokens[::-1]
    assert tokens_of(model, CONVERSATIONS[1:2], 2) == tokens[1:2]
    assert tokens_of(model, [c for c in CONVERSATIONS for _ in range(2)], 1) == [
        [t] for g in tokens for t in g
    ]
    assert tokens_of(HuggingFaceModel(folder, device="cpu", max_batch_tokens=1), CONVERSATIONS, 2) == tokens
    other = model.generate(CONVERSATIONS, Sampling(max_new_tokens=10, seed=8), samples=2)
    assert not {r.token_ids for group in other for r in group} & {ids for group in tokens for ids in group}


def test_without_a_seed_replies_differ(model):
    sampling = Sampling(max_new_tokens=20)
    assert model.generate(CONVERSATIONS, sampling) != model.generate(CONVERSATIONS, sampling)


def test_global_generators_are_left_alone(model):
    torch.manual_seed(5)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    model.generate(CONVERSATIONS, Sampling(max_new_tokens=5))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.array_equal(np.random.get_state()[1], state[1])


@pytest.mark.parametrize(("budget", "sizes"), [(1, [1] * 4), (50, [1, 2, 1]), (10_000, [4])])
def test_batches_hold_the_token_budget_longest_first(folder, budget, sizes):
    batches = list(
        HuggingFaceModel(folder, device="cpu", max_batch_tokens=budget)._batches([9, 30, 15, 3], 10)
    )
    assert [len(batch) for batch in batches] == sizes
    assert [row for batch in batches for row in batch] == [1, 2, 0, 3]


def test_the_models_own_sampling_rules_do_not_interfere(model, folder, tmp_path):
    rules = GenerationConfig(
        do_sample=True,
        temperature=0.3,
        top_k=2,
        top_p=0.5,
        repetition_penalty=3.0,
        min_new_tokens=9,
        max_length=3,
    )
    other = HuggingFaceModel(tiny_language_model(tmp_path), device="cpu")
    other.model.generation_config = rules
    sampling = Sampling(max_new_tokens=10, seed=7)
    assert other.generate(CONVERSATIONS, sampling, 3) == model.generate(CONVERSATIONS, sampling, 3)
    assert other.model.generation_config is rules


def test_every_end_token_ends_a_reply_and_is_kept(model):
    end = set(model.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert set(model.eos_token_ids) == end
    replies = model.generate(CONVERSATIONS, Sampling(max_new_tokens=40, seed=3), samples=40)
    seen = set()
    for reply in (reply for group in replies for reply in group):
        assert len(reply.token_ids) == len(reply.log_probs) <= 40
        assert not end & set(reply.token_ids[:-1])
        assert reply.finished == (reply.token_ids[-1] in end)
        assert reply.finished or len(reply.token_ids) == 40
        assert reply.text == model.tokenizer.decode(reply.token_ids, skip_special_tokens=True)
        seen.add(reply.token_ids[-1] if reply.finished else None)
    assert seen == {*end, None}


def test_padding_with_the_end_token_is_not_taken_for_an_end(folder, model):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    other = HuggingFaceModel(model.model, tokenizer)
    sampling = Sampling(max_new_tokens=40, seed=3)
    assert other.generate(CONVERSATIONS, sampling, 5) == model.generate(CONVERSATIONS, sampling, 5)


def test_a_conversation_that_is_too_long_costs_only_itself(model):
    long = [{"role": "user", "content": "x" * 600}]
    bad, good = model.generate([long, CONVERSATIONS[0]], Sampling(max_new_tokens=4, seed=0), samples=2)
    assert [reply.text for reply in bad] == ["", ""]
    assert not bad[0].finished
    assert f"The prompt has {len(model.chat.prompt(long))} tokens" in bad[0].error
    assert "context holds 512" in bad[0].error
    assert [reply.error for reply in good] == [None, None]
    assert model.generate([], Sampling()) == []


def test_dropout_is_off(tmp_path, model):
    folder = tiny_language_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.9}))
    other = HuggingFaceModel(folder, device="cpu")
    other.model.train()
    sampling = Sampling(max_new_tokens=10, seed=7)
    assert other.generate(CONVERSATIONS, sampling) == model.generate(CONVERSATIONS, sampling)


def test_broken_weights_are_said_to_be_broken(tmp_path):
    model = HuggingFaceModel(tiny_language_model(tmp_path), device="cpu")
    with torch.no_grad():
        model.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(WMRLError, match="weights are broken"):
        model.generate(CONVERSATIONS, Sampling(max_new_tokens=2, seed=0))


def _without(name):
    return lambda folder: (folder / name).unlink()


def _truncate(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def _drop_a_tensor(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_without("config.json"), "is not a Hugging Face model directory: it has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "Cannot load the language model"),
        (lambda folder: (folder / "config.json").write_text("{}"), "Cannot load the language model"),
        (_without("model.safetensors"), "Cannot load the language model"),
        (_truncate, "Cannot load the language model"),
        (_drop_a_tensor, "are incomplete: model.layers.1.mlp.up_proj.weight"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "Cannot load the tokenizer"),
        (_without("chat_template.jinja"), "has no chat template"),
    ],
)
def test_a_damaged_folder_is_one_sentence(tmp_path, damage, sentence):
    damage(tiny_language_model(tmp_path))
    with pytest.raises(WMRLError, match=sentence) as caught:
        HuggingFaceModel(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["/no/such/model", "./nowhere", "no-such-organisation/no-such-model"])
def test_a_model_that_is_not_there_is_one_sentence(source):
    with pytest.raises(WMRLError, match=r"There is no model directory|Cannot load") as caught:
        HuggingFaceModel(source)
    assert "\n" not in str(caught.value)


def test_a_loaded_model_needs_its_tokenizer(model):
    with pytest.raises(WMRLError, match="needs its tokenizer"):
        HuggingFaceModel(model.model)


def test_a_model_without_chat_template_takes_one(tmp_path, model):
    folder = tiny_language_model(tmp_path, chat_template=None)
    other = HuggingFaceModel(folder, device="cpu", chat_template=CHATML)
    sampling = Sampling(max_new_tokens=5, seed=0)
    assert other.generate(CONVERSATIONS, sampling) == model.generate(CONVERSATIONS, sampling)


def test_weights_keep_the_type_of_the_checkpoint_unless_told(tmp_path):
    folder = tiny_language_model(tmp_path)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert HuggingFaceModel(folder, device="cpu").model.dtype == torch.bfloat16
    assert HuggingFaceModel(folder, device="cpu", dtype=torch.float32).model.dtype == torch.float32


def test_half_precision_is_computed_as_float32_on_a_processor_unless_asked_for(tmp_path):
    folder = tiny_language_model(tmp_path)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    assert HuggingFaceModel(folder, device="cpu").model.dtype == torch.float32
    assert HuggingFaceModel(folder, device="cpu", dtype=torch.float16).model.dtype == torch.float16


@pytest.mark.parametrize(
    "setting",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
    ],
)
def test_sampling_refuses_what_cannot_be(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Sampling(**setting)


def test_prompts_that_begin_alike_are_read_together_and_answered_as_alone(model, monkeypatch):
    task, other = list(range(40, 90)), list(range(10, 55))
    prompts = [[*task, 7, 8], [*task, 9], [*other, 3, 4, 5], task, task, [5, 6]]
    sampling = Sampling(max_new_tokens=6, temperature=1.0, seed=3)
    together = model.complete(prompts, sampling, samples=2)
    monkeypatch.setattr(hugging_face, "share_prefixes", lambda rows, at_most: None)
    for prompt, replies in zip(prompts[:3], together, strict=False):
        for reply, alone in zip(replies, model.complete([prompt], sampling, samples=2)[0], strict=True):
            assert reply.token_ids == alone.token_ids
            assert reply.log_probs == pytest.approx(alone.log_probs, abs=1e-5)
    read = model.model.forward
    tokens = []

    @wraps(read)
    def counted(**arguments):
        tokens.append(arguments["input_ids"].numel())
        return read(**arguments)

    monkeypatch.undo()
    monkeypatch.setattr(model.model, "forward", counted)
    model.complete(prompts, sampling, samples=2)
    assert sum(tokens[:2]) < 0.6 * 2 * sum(map(len, prompts))  # the two passes that read
