"""`VLLMSampler`: replies from vLLM, in this process or from a server, with the weights of the latest step.

New weights travel as a file: the policy writes them as safetensors, vLLM's workers read them in place of
what they had (``reload_weights``), and the prefix cache, which holds keys and values of the old ones, is
emptied. So a server has to see the same files, and to be started like this::

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR --served-model-name agent --logprobs-mode processed_logprobs

The mode of the log-probabilities matters as soon as the temperature is not 1. A trainer that is told other
log-probabilities than its own stops before it updates anything.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import Generation, Sampling
from wmrl_rewards.language_models.vllm_engine import import_vllm

__all__ = ["InProcess", "Server", "VLLMSampler"]

# Where a reply may be complete; whether it is, the policy says.
_FENCES = ("\n```\n", "\n~~~\n")
_SHARD_BYTES = 2 * 1024**3
# A server takes what a request leaves open from the model's generation_config.json.
_WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True)
class Request:
    """A prompt to continue.

    Attributes:
        token_ids: The prompt.
        max_tokens: Most new tokens.
        temperature: Sampling temperature.
        seed: Seed of this one reply.
        fences: Texts to stop behind.
        ends: Tokens to stop behind.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    fences: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()

    def parameters(self) -> dict[str, Any]:
        """What both of vLLM's interfaces call by the same names."""
        return {
            **_WHOLE_DISTRIBUTION,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stop": list(self.fences),
            "stop_token_ids": list(self.ends),
            "include_stop_str_in_output": True,
            "logprobs": 0,  # of the sampled token alone
            "skip_special_tokens": True,
            "spaces_between_special_tokens": False,
        }


@dataclass(frozen=True)
class Continuation:
    """What came of a request.

    Attributes:
        token_ids: The new tokens as they were sampled.
        log_probs: Their log-probabilities.
        fence: Whether it stopped behind a fence.
        finished: Whether it did not hit the limit.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    fence: bool
    finished: bool


class Engine(Protocol):
    """A vLLM to talk to."""

    def continue_all(self, requests: Sequence[Request]) -> list[Continuation]:
        """Continue prompts, as many at once as it can."""
        ...

    def reload(self, directory: Path) -> None:
        """Read weights from a directory and forget what was computed with the old ones."""
        ...


@dataclass
class _Reply:
    """A reply in the making."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    done: bool = False
    finished: bool = True


@dataclass
class VLLMSampler:
    """Samples with vLLM; see `Sampler`.

    vLLM can stop at a text, but not where a program is closed: a fence may also open a block or stand in a
    string. So it stops behind each fence, and goes on from there, token by token as before, where the reply
    is not complete.

    Args:
        engine: The vLLM to talk to.
        decode: Text of token ids, without special tokens.
        scratch: Folder for weights on their way; None takes the system's temporary one.
    """

    engine: Engine
    decode: Callable[[Sequence[int]], str]
    scratch: Path | None = None

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop: Callable[[str], bool] | None = None,
        ends: Sequence[int] = (),
    ) -> list[Generation]:
        """See `Sampler`; how far the same seed gives the same replies is up to vLLM."""
        replies = [_Reply(tuple(prompt)) for prompt in prompts]
        seeds = np.random.default_rng(sampling.seed).integers(2**31, size=len(prompts)).tolist()
        fences = () if stop is None else _FENCES
        live = list(range(len(replies)))
        while live:
            requests = [_request(replies[i], sampling, seeds[i], fences, tuple(ends)) for i in live]
            for i, continuation in zip(live, self.engine.continue_all(requests), strict=True):
                self._take(replies[i], continuation, sampling, stop)
            live = [i for i in live if not replies[i].done]
        return [Generation(self.decode(r.token_ids), r.token_ids, r.log_probs, r.finished) for r in replies]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Sampler`."""
        with tempfile.TemporaryDirectory(prefix="wmrl-weights-", dir=self.scratch) as folder:
            for number, shard in enumerate(_shards(weights)):
                save_file(shard, Path(folder) / f"model-{number:05d}.safetensors", metadata={"format": "pt"})
            self.engine.reload(Path(folder))

    def _take(
        self, reply: _Reply, new: Continuation, sampling: Sampling, stop: Callable[[str], bool] | None
    ) -> None:
        """Add what was sampled to a reply."""
        reply.token_ids += new.token_ids
        reply.log_probs += new.log_probs
        goes_on = new.fence and stop is not None and not stop(self.decode(reply.token_ids))
        reply.done = not goes_on or len(reply.token_ids) >= sampling.max_new_tokens
        reply.finished = new.finished and not goes_on


def _request(
    reply: _Reply, sampling: Sampling, seed: int, fences: tuple[str, ...], ends: tuple[int, ...]
) -> Request:
    used = len(reply.token_ids)
    # Another seed behind each fence: with the same one, the same random numbers would come again.
    return Request(
        reply.prompt + reply.token_ids,
        sampling.max_new_tokens - used,
        sampling.temperature,
        (seed + used) % 2**31,
        fences,
        ends,
    )


def _shards(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Weights in files of a bounded size, on the CPU; the format refuses two names for one memory."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        own = tensor.cpu().contiguous()
        taken = any(own.data_ptr() == other.data_ptr() for other in shard.values())
        shard[name] = own.clone() if taken else own
        size += tensor.numel() * tensor.element_size()
        if size >= _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
    if shard:
        yield shard


class InProcess:
    """vLLM in this process, on the policy's own machine.

    Args:
        model: Model directory or name, of the layout that the policy has.
        dtype: Number format to compute in.
        memory_fraction: Share of the GPU's memory that vLLM takes; the policy needs the rest.
        **engine: Any other of vLLM's ``EngineArgs``.

    Raises:
        MissingExtraError: vLLM is not installed.
    """

    def __init__(
        self, model: str | os.PathLike[str], dtype: str, memory_fraction: float = 0.4, **engine: Any
    ) -> None:
        self._vllm = import_vllm()
        self.llm = self._vllm.LLM(
            model=str(model),
            dtype=dtype,
            gpu_memory_utilization=memory_fraction,
            logprobs_mode="processed_logprobs",  # of the distribution that is sampled from
            generation_config="vllm",
            **engine,
        )

    def continue_all(self, requests: Sequence[Request]) -> list[Continuation]:
        """See `Engine`."""
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(request.token_ids)} for request in requests],
            [self._vllm.SamplingParams(**request.parameters()) for request in requests],
            use_tqdm=False,
        )
        return [_of_output(output.outputs[0]) for output in outputs]

    def reload(self, directory: Path) -> None:
        """See `Engine`."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
        if not self.llm.reset_prefix_cache():
            raise WMRLError("vLLM did not empty its prefix cache, which holds the work of older weights.")

    def close(self) -> None:
        """End the engine's processes; they end with the program otherwise."""
        self.llm.llm_engine.engine_core.shutdown()


def _of_output(output: Any) -> Continuation:
    token_ids = tuple(output.token_ids)
    log_probs = tuple(place[token].logprob for token, place in zip(token_ids, output.logprobs, strict=True))
    stopped = output.stop_reason
    return Continuation(token_ids, log_probs, isinstance(stopped, str), output.finish_reason != "length")


class Server:
    """A vLLM server in its development mode; see the module.

    Args:
        url: Where it is, ``http://host:port``; a ``/v1`` at the end may be left out.
        model: The name under which it serves the model.
        timeout_s: Longest wait for an answer.
        connections: Requests at once.
    """

    def __init__(self, url: str, model: str, timeout_s: float = 3600.0, connections: int = 64) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.timeout_s = timeout_s
        self.connections = connections

    def continue_all(self, requests: Sequence[Request]) -> list[Continuation]:
        """See `Engine`."""
        with ThreadPoolExecutor(self.connections) as pool:
            return list(pool.map(self._continue, requests))

    def reload(self, directory: Path) -> None:
        """See `Engine`."""
        self._post(
            "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
        )
        self._post("/reset_prefix_cache", {})

    def _continue(self, request: Request) -> Continuation:
        asked = {"model": self.model, "prompt": list(request.token_ids), "return_token_ids": True}
        answer = self._post("/v1/completions", asked | request.parameters())
        try:
            (choice,) = answer["choices"]
            token_ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            fence, ended = isinstance(choice.get("stop_reason"), str), choice["finish_reason"] != "length"
            drawn = list(zip(map(int, token_ids), map(float, log_probs), strict=True))
        except (LookupError, TypeError, ValueError) as error:
            raise WMRLError(
                f"The server {self.url} does not answer as vLLM does, with token ids and the log-probability "
                f"of each ({error!r}): serve the model with vLLM 0.32 or later."
            ) from error
        return Continuation(tuple(i for i, _ in drawn), tuple(p for _, p in drawn), fence, ended)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request, as JSON; None if it is empty."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise WMRLError(self._refused(path, error)) from None
        except (OSError, HTTPException) as error:
            raise WMRLError(f"The vLLM server {self.url} does not answer: {error!r}.") from None
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise WMRLError(f"The server {self.url} answers {path} with no JSON: {text[:80]!r}.") from None

    def _refused(self, path: str, error: urllib.error.HTTPError) -> str:
        if error.code == 404 and not path.startswith("/v1"):
            return (
                f"The vLLM server {self.url} takes no new weights: start it with VLLM_SERVER_DEV_MODE=1 "
                "in its environment."
            )
        said = " ".join(error.read().decode(errors="replace").split())[:300]
        return f"The vLLM server {self.url} refuses {path}: {error.code} {said}"
