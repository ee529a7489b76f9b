"""`OpenAIModel`: any endpoint with OpenAI's chat-completions protocol (vLLM, SGLang, llama.cpp, a service).

The standard library's HTTP client does all that one POST a reply needs, so that no client package has to be
pinned beside the engine's own.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models.base import Generation, Message, Sampling

__all__ = ["OpenAIModel"]

_WORTH_A_RETRY = (408, 409, 425, 429, 500, 502, 503, 504)
_WRONG_SETTINGS = (401, 403, 404)
_LONGEST_PAUSE_S = 60.0
_MAX_REPLY_BYTES = 64 * 2**20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OpenAIModel:
    """Chat generation by an endpoint.

    Each sample is one request; requests run side by side. One that fails is tried again with growing pauses
    (or the pause that the server asks for), and in the end gives a generation with an ``error``.

    Args:
        base_url: Address up to and with the version, for example ``http://127.0.0.1:8000/v1``.
        model: Name of the model there.
        api_key_env: Name of the environment variable that holds the key; None sends none.
        timeout_s: Longest silence of the server before an attempt counts as failed.
        max_retries: Further attempts after a failed one.
        max_concurrency: Requests in flight at most.
        extra: Further fields of the request's body, for example
            ``{"chat_template_kwargs": {"enable_thinking": False}}``.

    Raises:
        ConfigError: A setting is wrong, or the environment variable is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = 300.0,
        max_retries: int = 4,
        max_concurrency: int = 16,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"base_url must look like http://127.0.0.1:8000/v1, not {base_url!r}.")
        if api_key_env is not None and not os.environ.get(api_key_env):
            raise ConfigError(
                f"The environment variable {api_key_env}, which should hold the key, is not set."
            )
        if not timeout_s > 0 or max_retries < 0 or max_concurrency < 1:
            raise ConfigError(
                "timeout_s must be above 0, max_retries at least 0 and max_concurrency at least 1."
            )
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.model = model
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self.max_concurrency = max_concurrency
        self.extra = dict(extra or {})
        self._api_key_env = api_key_env
        # A proxy cannot reach this machine's own ports, and a redirect would carry the key elsewhere.
        direct = [urllib.request.ProxyHandler({})] if address.hostname in _LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirect, *direct)

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """Generate replies; see `LanguageModel`.

        Raises:
            WMRLError: The endpoint refuses the key, or does not know the model: no retry would help.
        """
        seen: Counter[str] = Counter()
        bodies = []
        for conversation in conversations:
            for _ in range(samples):
                # By content, so that the reply to a question does not depend on what else is asked.
                key = json.dumps([sampling.seed, conversation])
                bodies.append(self._body(conversation, sampling, f"{seen[key]} {key}"))
                seen[key] += 1
        pool = ThreadPoolExecutor(self.max_concurrency, thread_name_prefix="wmrl-openai")
        try:
            replies = list(pool.map(self._ask, bodies))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [replies[i : i + samples] for i in range(0, len(replies), samples)]

    def count_tokens(self, text: str) -> int:
        """An estimate, since the endpoint keeps its tokenizer: one token for three bytes, rounded up."""
        return math.ceil(len(text.encode()) / 3)

    def _body(self, conversation: Sequence[Message], sampling: Sampling, seed_key: str) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": list(conversation),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.seed is not None:
            fields["seed"] = int.from_bytes(hashlib.sha256(seed_key.encode()).digest()[:4], "little") >> 1
        return json.dumps(fields | self.extra).encode()

    def _ask(self, body: bytes) -> Generation:
        """One request with its retries."""
        attempt = 0
        while True:
            answer = self._post(body)
            if isinstance(answer, bytes):
                return _generation(answer)
            if answer.final or attempt == self.max_retries:
                return Generation("", finished=False, error=answer.problem)
            pause = 2.0**attempt if answer.retry_after_s is None else answer.retry_after_s
            time.sleep(min(pause, _LONGEST_PAUSE_S))
            attempt += 1

    def _post(self, body: bytes) -> bytes | _Failure:
        headers = {"Content-Type": "application/json"}
        if self._api_key_env is not None:
            headers["Authorization"] = f"Bearer {os.environ[self._api_key_env]}"
        request = urllib.request.Request(self.url, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                return response.read(_MAX_REPLY_BYTES)
        except urllib.error.HTTPError as error:
            problem = f"{self.url} answers {error.code}: {_server_message(error)}"
            if error.code in _WRONG_SETTINGS:
                raise WMRLError(problem) from error
            return _Failure(problem, error.code not in _WORTH_A_RETRY, _retry_after(error))
        except (OSError, http.client.HTTPException) as error:
            return _Failure(f"No answer from {self.url}: {getattr(error, 'reason', None) or repr(error)}.")


@dataclass(frozen=True)
class _Failure:
    """Why an attempt failed, whether another one is useless, and the pause that the server asks for."""

    problem: str
    final: bool = False
    retry_after_s: float | None = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow nothing: the 3xx answer becomes an error that names it."""


def _generation(answer: bytes) -> Generation:
    try:
        choice = json.loads(answer)["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        problem = f"The endpoint's answer is not a chat completion: {answer[:80]!r}."
        return Generation("", finished=False, error=problem)
    if not isinstance(text, str):
        problem = f"The endpoint's answer has no text (finish_reason {reason})."
        return Generation("", finished=False, error=problem)
    return Generation(text, finished=reason != "length")


def _server_message(error: urllib.error.HTTPError) -> str:
    """What the server says is wrong: the message of a JSON error, or the beginning of any other text."""
    text = error.read(2000).decode(errors="replace")
    try:
        found = json.loads(text)
        text = str(found.get("message") or found["error"]["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return " ".join(text.split())[:300] or error.reason


def _retry_after(error: urllib.error.HTTPError) -> float | None:
    """Seconds of the Retry-After header; a date there counts as none."""
    try:
        return max(0.0, float(error.headers.get("Retry-After", "")))
    except ValueError:
        return None
