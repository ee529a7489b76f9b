"""vLLM for real, on processors: its server behind `OpenAIModel`, its engine as `VLLMModel`.

make test-vllm
"""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

from wmrl_agents.grpo.parts import open_served
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.vllm_sampler import InProcess, VLLMSampler
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_envs.errors import WMRLError
from wmrl_rewards import LanguageModelWorldModel, PredictionRequest, check_world_model
from wmrl_rewards.language_models import HuggingFaceModel, OpenAIModel, Sampling
from wmrl_rewards.world_models.prompts import SCHEMA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("WMRL_TEST_VLLM" not in os.environ, reason="`make test-vllm` runs this"),
]
FOLDER = Path(os.environ.get("WMRL_TEST_VLLM", ".")) / "smollm2"
CONTEXT = 2048
START_S = 600
WARM = Sampling(max_new_tokens=12, temperature=1.0, seed=3)
GREEDY = Sampling(max_new_tokens=12, temperature=0)
BOUND = Sampling(max_new_tokens=120, temperature=0, schema=SCHEMA)
TEXTS = ("Read train.csv with pandas.", "How are you? 你好 🙂", "Print the sum of 1 and 2.")
CONVERSATIONS = [[{"role": "user", "content": text}] for text in TEXTS]
PROGRAM = "import pandas as pd\nprint(pd.read_csv('nowhere.csv'))\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of `vllm serve`, which runs meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("vllm"), "serve", FOLDER, "--served-model-name", "wm"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += [
        "--max-model-len",
        str(CONTEXT),
        "--max-num-seqs",
        "16",
        "--kv-cache-memory-bytes",
        str(2**30),
    ]
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
            start_new_session=True,  # so that its workers end with it
        )
    try:
        for _ in range(START_S):
            try:
                ended = server.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if answers(f"http://127.0.0.1:{port}/health"):
                    break
            else:
                pytest.fail(f"vllm serve ended with {ended}:\n{log.read_text()[-3000:]}")
        else:
            pytest.fail(f"vllm serve did not start in {START_S} s:\n{log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=1).status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def engine():
    name = f"vllm:{FOLDER}?dtype=float32&enforce_eager=true&max_num_seqs=16&kv_cache_memory_bytes={2**30}"
    engine = open_served(name, max_context=CONTEXT)
    yield engine
    engine.close()


@pytest.fixture(params=["address", "engine"])
def model(request):
    """Either back end."""
    found = request.getfixturevalue(request.param)
    return OpenAIModel(found, "wm") if isinstance(found, str) else found


def texts(groups):
    return [[reply.text for reply in group] for group in groups]


def test_replies_come_in_order_with_seeds_that_hold(model):
    replies = model.generate(CONVERSATIONS, WARM, samples=2)
    assert [len(group) for group in replies] == [2, 2, 2]
    assert all(reply.error is None for group in replies for reply in group)
    assert all(one.text != other.text for one, other in replies)
    assert texts(model.generate(CONVERSATIONS[1:], WARM, samples=2)) == texts(replies[1:])


def test_both_back_ends_say_the_same_as_transformers(address, engine):
    reference = texts(
        HuggingFaceModel(FOLDER, device="cpu", dtype=torch.float32).generate(CONVERSATIONS, GREEDY)
    )
    assert texts(engine.generate(CONVERSATIONS, GREEDY)) == reference
    assert texts(OpenAIModel(address, "wm").generate(CONVERSATIONS, GREEDY)) == reference


def test_a_schema_binds_the_answer(model):
    ((answer,), (other,)) = model.generate(CONVERSATIONS[:2], BOUND)
    for reply in (answer, other):
        assert reply.error is None
        assert reply.text.lstrip().startswith("{")
        if reply.finished:
            found = json.loads(reply.text)
            assert list(found) == SCHEMA["required"]
            assert found["status"] in SCHEMA["properties"]["status"]["enum"]


def test_a_conversation_that_is_too_long_costs_only_itself(model):
    long = [{"role": "user", "content": "x " * 3 * CONTEXT}]
    (bad,), (good,) = model.generate([long, CONVERSATIONS[0]], GREEDY)
    assert (bad.text, bad.finished) == ("", False)
    assert str(CONTEXT) in bad.error
    assert good.error is None


def test_predictions_on_bundled_tasks(model):
    competitions = [load_competition(name) for name in ("digits", "sms-spam")]
    requests = [
        PredictionRequest(task_text(competition), PROGRAM, context={"competition": competition})
        for competition in competitions
    ]
    greedy = Sampling(max_new_tokens=120, temperature=0)
    world_model = LanguageModelWorldModel(model, sampling=greedy, max_context_tokens=CONTEXT)
    for prediction in world_model.predict(requests):
        assert (prediction.score is None) == (prediction.error is not None)
        assert (prediction.score is None) == (prediction.outcome is None)
        assert "names no status" not in (prediction.error or "")


def test_the_contract(model):
    sampling = Sampling(max_new_tokens=8, temperature=0)
    settings = {"max_context_tokens": 256, "system_prompt": "Say how the program ends.", "retries": 0}
    check_world_model(LanguageModelWorldModel(model, sampling=sampling, **settings))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_probabilities_are_those_of_the_sampling_distribution(engine, temperature):
    reference = HuggingFaceModel(FOLDER, device="cpu", dtype=torch.float32)
    sampling = Sampling(max_new_tokens=12, temperature=temperature, seed=1)
    for conversation, (reply,) in zip(CONVERSATIONS, engine.generate(CONVERSATIONS, sampling), strict=True):
        prompt = reference.chat.prompt(conversation)
        ids = torch.tensor([[*prompt, *reply.token_ids]])
        with torch.no_grad():
            logits = reference.model(ids).logits[0, len(prompt) - 1 : -1] / (temperature or 1.0)
        expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        assert list(reply.log_probs) == pytest.approx(expected.tolist(), abs=5e-3)
        assert reply.text == reference.decode(reply.token_ids)


def test_a_reply_that_ends_itself_is_finished_and_keeps_its_last_token(engine):
    yes = {"enum": ["yes"]}
    ((whole,),) = engine.generate(CONVERSATIONS[:1], Sampling(max_new_tokens=8, temperature=0, schema=yes))
    assert (whole.text, whole.finished) == ('"yes"', True)
    assert whole.token_ids[-1] in (engine.chat.end_of_turn, engine.tokenizer.eos_token_id)
    ((cut,),) = engine.generate(CONVERSATIONS[:1], Sampling(max_new_tokens=1, temperature=0, schema=yes))
    assert not cut.finished


def test_what_the_engine_is_named_by_and_limited_to(engine):
    assert engine.max_context == CONTEXT
    assert len(engine.fingerprint) == 64
    assert engine.generate([], GREEDY) == []
    assert engine.count_tokens("status: ok") == len(engine.tokenizer("status: ok").input_ids)


def test_a_schema_that_is_none_is_refused_in_one_sentence(engine):
    nonsense = Sampling(max_new_tokens=4, temperature=0, schema={"type": "nonsense"})
    with pytest.raises(WMRLError, match=r"^vLLM refuses the request: "):
        engine.generate(CONVERSATIONS[:1], nonsense)
    assert engine.generate(CONVERSATIONS[:1], GREEDY)[0][0].error is None


def test_a_model_that_the_server_does_not_have(address):
    with pytest.raises(WMRLError, match="answers 404"):
        OpenAIModel(address, "another").generate(CONVERSATIONS[:1], GREEDY)


def test_a_policy_samples_with_the_engine_and_its_newest_weights():
    settings = {"enforce_eager": True, "max_model_len": CONTEXT, "max_num_seqs": 16}
    sampler = InProcess(FOLDER, "float32", kv_cache_memory_bytes=2**30, **settings)
    try:
        policy = LanguageModelPolicy(FOLDER, max_new_tokens=12, temperature=0.7, device="cpu")
        policy.sampler = VLLMSampler(sampler, policy.language_model.decode)
        prompts = [policy.begin("You write Python.", text) for text in TEXTS]
        before = policy.sample(prompts, seed=3)
        generator = torch.manual_seed(0)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        after = policy.sample(prompts, seed=3)
    finally:
        sampler.close()
    assert [sample.version for sample in before + after] == [0, 0, 0, 1, 1, 1]
    for sample in after:
        with torch.no_grad():
            computed = policy.token_statistics([sample]).log_probs[0]
        own = torch.tensor(sample.mask[1:])
        recorded = torch.tensor(sample.log_probs[1:])
        assert float((computed - recorded)[own].abs().mean()) < 0.01
