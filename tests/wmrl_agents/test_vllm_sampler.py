"""The sampler for vLLM, against a small server of the same interface behind which a real model samples.

The server answers as vLLM's does where the sampler relies on it: token ids in and out, stop texts, seeds, new
weights read from a folder, and a prefix cache that keeps old work until it is reset.
"""

import json
import os
import socket
import sys
import threading
from http.client import parse_headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.stubs import parrot
from tests.wmrl_agents.test_policy_contract import qwen2
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import load_policy
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.low_rank import LoRAConfig
from wmrl_agents.policies.sampler import Sampler, TransformersSampler
from wmrl_agents.policies.vllm_sampler import InProcess, Request, Server, VLLMSampler
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models.base import Sampling
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

STRING = '```python\nx = """\n```\n"""\n```'
REPLIES = {"one": "```python\nprint(1)\n```\nObservation: ok\n", "two": f"{STRING}\nNow I wait."}


class SmallServer(ThreadingHTTPServer):
    """Completions, new weights and a prefix cache."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.language_model = HuggingFaceModel(folder, device="cpu", dtype=torch.float32)
        self.cache = {}
        self.requests = []
        self.lock = threading.Lock()
        self.development = True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def completions(self, body):
        assert body["model"] == "agent"
        assert (body["top_p"], body["top_k"], body["repetition_penalty"]) == (1.0, 0, 1.0)
        key = json.dumps(body, sort_keys=True)
        if key not in self.cache:
            self.cache[key] = self._sample(body)
        return {"choices": [self.cache[key]]}

    def _sample(self, body):
        model = self.language_model
        # vLLM itself knows the tokenizer's end of a text, and no chat template.
        model.eos_token_ids = (model.tokenizer.eos_token_id, *body["stop_token_ids"])
        sampling = Sampling(body["max_tokens"], body["temperature"], seed=body["seed"])
        ((reply,),) = model.complete([body["prompt"]], sampling)
        size, fence = len(reply.token_ids), None
        for length in range(1, size + 1):
            text = model.decode(reply.token_ids[:length])
            fence = next((stop for stop in body["stop"] if stop in text), None)
            if fence is not None:
                size = length
                break
        return {
            "token_ids": list(reply.token_ids[:size]),
            "logprobs": {"token_logprobs": list(reply.log_probs[:size])},
            "stop_reason": fence,
            "finish_reason": "stop" if reply.finished or fence else "length",
        }

    def collective_rpc(self, body):
        assert body["method"] == "reload_weights"
        files = sorted(Path(body["kwargs"]["weights_path"]).glob("*.safetensors"))
        weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
        TransformersSampler(self.language_model).load_weights(weights.items(), 0)
        return {"results": [None]}

    def reset_prefix_cache(self, body):
        self.cache.clear()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.rpartition("/")[2]
        if not self.server.development and not self.path.startswith("/v1"):
            self.send_error(404)
            return
        with self.server.lock:
            self.server.requests.append((name, body))
            try:
                answer = getattr(self.server, name)(body)
            except AssertionError:
                self.send_error(400, "not what was expected")
                return
        self.send_response(200)
        self.end_headers()
        if answer is not None:
            self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        """Keep quiet."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return parrot(tmp_path_factory.mktemp("parrot"), REPLIES)


@pytest.fixture
def server(folder):
    small = SmallServer(folder)
    thread = threading.Thread(target=small.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield small
    small.shutdown()
    small.server_close()
    thread.join()


def load(folder, server, **settings):
    settings = {"temperature": 0.05, "max_new_tokens": 100} | settings
    policy = LanguageModelPolicy(folder, device="cpu", **settings)
    policy.sampler = VLLMSampler(Server(server.url, "agent"), policy.language_model.decode)
    return policy


def answers(policy, seed=0):
    return policy.sample([policy.begin("", user) for user in REPLIES], seed=seed)


def test_replies_end_behind_their_program_and_not_at_a_fence_inside(folder, server):
    policy = load(folder, server)
    assert isinstance(policy.sampler, Sampler)
    samples = answers(policy)
    assert [sample.text for sample in samples] == ["```python\nprint(1)\n```\n", f"{STRING}\n"]
    assert not any(sample.truncated for sample in samples)
    asked = [body for name, body in server.requests if name == "completions"]
    # Once for the first reply; the second stops at the fence in its string, and is gone on with from there.
    assert len(asked) == 3
    first, again = (body for body in asked if body["prompt"][: len(asked[1]["prompt"])] == asked[1]["prompt"])
    assert again["max_tokens"] + len(again["prompt"]) == first["max_tokens"] + len(first["prompt"])
    assert again["seed"] != first["seed"]


def test_what_is_recorded_is_what_is_trained(folder, server):
    policy = load(folder, server, temperature=1.0)
    samples = answers(policy)
    statistics = policy.token_statistics(samples)
    for row, sample in zip(statistics.log_probs.detach(), samples, strict=True):
        recorded = torch.tensor(sample.log_probs[1:])
        torch.testing.assert_close(row[: len(recorded)], recorded, rtol=0, atol=1e-3)


def test_without_a_stop_a_reply_ends_itself_or_is_marked(folder, server):
    (one, _) = answers(load(folder, server, stop_after_code=False))
    assert one.text == "```python\nprint(1)\n```\n"  # the invented observation is cut
    (_, short) = answers(load(folder, server, stop_after_code=False, max_new_tokens=5))
    assert short.truncated
    assert short.num_own_tokens == 5


def test_a_reply_ends_with_the_chat_templates_token_too(folder, server):
    server.language_model.tokenizer.eos_token = "<|endoftext|>"  # as of a base model
    (one, _) = answers(load(folder, server, stop_after_code=False))
    assert one.text == "```python\nprint(1)\n```\n"
    end = server.language_model.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert all(end in body["stop_token_ids"] for name, body in server.requests if name == "completions")
    assert not one.truncated


@pytest.mark.parametrize("lora", [None, LoRAConfig(4)])
def test_the_next_generation_uses_the_new_weights_and_no_old_work(folder, server, lora):
    policy = load(folder, server, lora=lora, temperature=1.0, max_new_tokens=8)
    before = answers(policy)
    generator = torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    after = answers(policy)  # the same prompts and seeds: a cache that was kept would answer as before
    assert [s.log_probs for s in after] != [s.log_probs for s in before]
    assert [s.version for s in before + after] == [0, 0, 1, 1]
    for sample in after:
        computed = policy.token_statistics([sample]).log_probs.detach()[0]
        torch.testing.assert_close(computed, torch.tensor(sample.log_probs[1:]), rtol=0, atol=1e-3)
    names = [name for name, _ in server.requests]
    assert names.count("collective_rpc") == names.count("reset_prefix_cache") == 2
    assert not list(Path(server.requests[0][1]["kwargs"]["weights_path"]).parent.glob("wmrl-weights-*"))


class Reader:
    """An engine that keeps the weights that it is given."""

    def reload(self, directory):
        self.weights = {name: t for file in directory.iterdir() for name, t in load_file(file).items()}


@pytest.mark.parametrize("lora", [None, LoRAConfig(4)])
def test_tied_weights_go_under_both_names(tmp_path, lora):
    """vLLM packs the output layer apart on processors, and would go on with the old one."""
    settings = {"dtype": torch.float32, "lora": lora}
    policy = qwen2(tmp_path, **settings)
    assert policy.model.config.tie_word_embeddings
    reader = Reader()
    VLLMSampler(reader, policy.language_model.decode).load_weights(policy.weights(), 0)
    assert set(reader.weights) == set(qwen2(tmp_path, dtype=torch.float32).model.state_dict())
    assert torch.equal(reader.weights["lm_head.weight"], reader.weights["model.embed_tokens.weight"])


def test_equal_prompts_get_replies_of_their_own(folder, server):
    policy = load(folder, server, temperature=2.0, max_new_tokens=8)
    prompt = policy.begin("", "one")
    first, second = policy.sample([prompt, prompt], seed=0)
    assert first.token_ids != second.token_ids
    assert policy.sample([prompt, prompt], seed=0) == [first, second]


def test_a_server_that_takes_no_weights_is_told_how_to(folder, server):
    server.development = False
    with pytest.raises(WMRLError, match="takes no new weights: start it with VLLM_SERVER_DEV_MODE=1"):
        answers(load(folder, server))


def test_a_server_that_refuses_or_is_not_there(folder, server):
    policy = load(folder, server)
    policy.sampler.engine.model = "other"
    with pytest.raises(WMRLError, match="refuses /v1/completions: 400"):
        answers(policy)
    policy.sampler.engine = Server("http://127.0.0.1:9", "agent")
    policy.note_update()
    with pytest.raises(WMRLError, match="does not answer"):
        answers(policy)


CHOICE = {
    "token_ids": [1, 2],
    "logprobs": {"token_logprobs": [-1.0, -2.0]},
    "finish_reason": "stop",
}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [CHOICE | {"token_ids": None}]},
        {"choices": [CHOICE | {"logprobs": None}]},
        {"choices": [CHOICE | {"logprobs": {"token_logprobs": [-1.0]}}]},
        {"choices": [CHOICE | {"logprobs": {"token_logprobs": [-1.0, None]}}]},
        ["choices"],
    ],
)
def test_a_server_that_is_no_vllm_is_told_apart(folder, server, answer):
    server.completions = lambda body: answer
    with pytest.raises(WMRLError, match="does not answer as vLLM does"):
        answers(load(folder, server))


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "does not answer: IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html", "with no JSON: b'<html'"),
        (b"", "does not answer: "),
        (b"nonsense\r\n\r\n", "does not answer: BadStatusLine"),
    ],
)
def test_a_server_that_talks_nonsense_ends_in_one_sentence(sent, problem):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once():
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as request:
                # To its end: who hangs up on words that were not read resets the connection.
                request.readline()
                request.read(int(parse_headers(request)["Content-Length"]))
                connection.sendall(sent)

        thread = threading.Thread(target=answer_once)
        thread.start()
        engine = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", "agent")
        with pytest.raises(WMRLError, match=problem):
            engine.continue_all([Request((1,), 4, 1.0, 0)])
        thread.join()


def test_vllm_in_process_does_not_report_its_use(folder, monkeypatch):
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "")  # so that it is put back
    monkeypatch.delenv("VLLM_NO_USAGE_STATS")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(WMRLError, match=r"pip install 'wmrl\[vllm\]'"):
        InProcess(folder, "float32")
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"


def test_the_config_names_it(folder, server):
    config = GRPOConfig(policy=str(folder), sampler=f"{server.url}/v1#agent", max_new_tokens=8)
    policy = load_policy(config, config.policy)
    assert policy.sampler.engine.url == server.url
    assert answers(policy)
    with pytest.raises(ConfigError, match="Name the model behind an endpoint"):
        load_policy(config.replace(sampler=server.url), config.policy)
    with pytest.raises(ConfigError, match="sampler must be transformers, vllm or"):
        load_policy(config.replace(sampler="sglang"), config.policy)
    with pytest.raises(WMRLError, match=r"pip install 'wmrl\[vllm\]'"):
        load_policy(config.replace(sampler="vllm"), config.policy)
