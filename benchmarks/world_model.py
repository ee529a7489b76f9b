"""What asking a world model costs besides the model itself, in ratios of one run.

- 512 predictions by an endpoint that takes a fixed time for each: at least 0.9 of the ideal throughput at the
  concurrency that is allowed;
- a batch of 32 prompts of 300 tokens and 64 new tokens in process: at least 3 times as fast as one by one,
  with a model whose own work takes the time (SmolLM2-135M: `make test-models` makes its directory);
- all that is done besides asking (questions, answers, grades): at most 0.2 ms a prediction.

    python benchmarks/world_model.py [--model DIR] [--dtype bfloat16] [--quick] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from wmrl_agents.policies import resolve_model
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_rewards import LanguageModelWorldModel, PredictionRequest
from wmrl_rewards.language_models import Generation, HuggingFaceModel, Message, OpenAIModel, Sampling

ANSWER = "status: ok\nroc_auc: 0.9125"
LATENCY_S = 1.0  # what a short answer of a fast server takes
CONCURRENCY = 32


class Check(NamedTuple):
    """One promise and what was measured."""

    claim: str
    measured: float
    holds: bool


class Endpoint(BaseHTTPRequestHandler):
    """Answers every question the same after a fixed time."""

    protocol_version = "HTTP/1.1"
    body = json.dumps({"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}]}).encode()

    def do_POST(self) -> None:
        """Read the question, wait, answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(LATENCY_S)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Takes all connections at once."""

    daemon_threads = True
    request_queue_size = 2 * CONCURRENCY


@contextmanager
def serving() -> Iterator[str]:
    """Address of an endpoint that runs meanwhile."""
    server = Server(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


class Instant:
    """A language model that answers at once."""

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """The same to each."""
        return [[Generation(ANSWER)] * samples for _ in conversations]

    def count_tokens(self, text: str) -> int:
        """About what a tokenizer would say."""
        return len(text) // 4


def requests(number: int) -> list[PredictionRequest]:
    """Questions on one task, all different, of the usual length."""
    competition = load_competition("breast-cancer")
    task, program = task_text(competition), "x = 1  # one statement of many\n" * 20
    return [
        PredictionRequest(task, solution=f"{program}print({i})\n", context={"competition": competition})
        for i in range(number)
    ]


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def throughput(number: int) -> Check:
    """Predictions by an endpoint, as a share of what the concurrency allows."""
    asked = requests(number)
    with serving() as url:
        world_model = LanguageModelWorldModel(OpenAIModel(url, "m", max_concurrency=CONCURRENCY))
        world_model.predict(asked[:CONCURRENCY])
        took = seconds(lambda: world_model.predict(asked))
    share = number / CONCURRENCY * LATENCY_S / took
    return Check(f"{number} predictions by an endpoint: at least 0.9 of the ideal", share, share >= 0.9)


def batching(model: HuggingFaceModel, rows: int) -> Check:
    """A batch against the same prompts one by one."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(10, model.model.config.vocab_size, (rows, 300)).tolist()
    sampling = Sampling(max_new_tokens=64, temperature=1.0, seed=0)
    model.complete(prompts[:2], sampling)
    alone = seconds(lambda: [model.complete([prompt], sampling) for prompt in prompts])
    together = seconds(lambda: model.complete(prompts, sampling))
    speedup = alone / together
    return Check(f"{rows} prompts in a batch: at least 3 times as fast as alone", speedup, speedup >= 3)


def bookkeeping(number: int) -> Check:
    """Everything besides the language model, in milliseconds a prediction."""
    asked = requests(number)
    world_model = LanguageModelWorldModel(Instant())
    took = median(seconds(lambda: world_model.predict(asked)) for _ in range(5))
    each = 1000 * took / number
    return Check("bookkeeping: at most 0.2 ms a prediction", each, each <= 0.2)


def main() -> int:
    """Measure and print; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="build/models/smollm2", help="for the batch in process")
    parser.add_argument("--dtype", default="bfloat16", help="its number format")
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of everything, a quarter of the batch"
    )
    parser.add_argument("--only", choices=("throughput", "batching", "bookkeeping"))
    options = parser.parse_args()
    part = 8 if options.quick else 1
    checks = []
    if options.only in (None, "throughput"):
        checks.append(throughput(512 // part))
    if options.only in (None, "batching"):
        model = HuggingFaceModel(resolve_model(options.model), dtype=getattr(torch, options.dtype))
        checks.append(batching(model, max(8, 32 // part)))
    if options.only in (None, "bookkeeping"):
        checks.append(bookkeeping(512 // part))
    for check in checks:
        print(f"{'ok  ' if check.holds else 'FAIL'}  {check.measured:7.3f}  {check.claim}")
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
