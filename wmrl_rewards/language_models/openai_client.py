"""`OpenAIModel`: any endpoint with OpenAI's chat-completions protocol (vLLM, SGLang, llama.cpp, a service).

The requests are those of the ``openai`` package. Which server is asked, when it is asked again, and what
counts as an answer is decided here: the package knows one server, and would give up on a request that another
one can answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wmrl_envs.errors import ConfigError, MissingExtraError, WMRLError
from wmrl_rewards.language_models.base import Generation, Message, Sampling

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIModel"]

_WORTH_A_RETRY = (408, 409, 425, 429, 500, 502, 503, 504)
_WRONG_SETTINGS = (401, 403, 404)
_REFUSED_SCHEMA = (400, 422, 501)
_LONGEST_PAUSE_S = 60.0
_MAX_REPLY_BYTES = 64 * 2**20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# What the package would add by itself from the environment, whoever is asked.
_NOT_SENT = ("Authorization", "OpenAI-Organization", "OpenAI-Project")


class OpenAIModel:
    """Chat generation by an endpoint, or by several that serve the same model.

    Each sample is one request; requests run side by side, and take the servers in turns. One that fails is
    tried again, at another server if there is one. A server that fails is left alone for a while: growing
    pauses of random length, or the pause that it asks for. What fails in the end gives a generation with an
    ``error``.

    A JSON schema is sent as ``response_format``. Where a server refuses such a request and takes the same one
    without a schema, it is asked without one from then on.

    Args:
        base_url: Address up to and with the version, for example ``http://127.0.0.1:8000/v1``; or several.
        model: Name of the model there.
        api_key_env: Name of the environment variable that holds the key; None sends none.
        timeout_s: Longest time that one attempt may take.
        max_retries: Further attempts after a failed one.
        max_concurrency: Requests in flight at most, at all servers together.
        extra: Further fields of the request's body, for example
            ``{"chat_template_kwargs": {"enable_thinking": False}}``.
        takes_schema: Whether to send JSON schemas; False never does.

    Raises:
        ConfigError: A setting is wrong, or the environment variable is not set.
        MissingExtraError: The package ``openai`` is not installed.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = 300.0,
        max_retries: int = 4,
        max_concurrency: int = 16,
        extra: Mapping[str, Any] | None = None,
        takes_schema: bool = True,
    ) -> None:
        self.base_urls = [base_url] if isinstance(base_url, str) else list(base_url)
        for url in self.base_urls or [""]:
            address = urlsplit(url)
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ConfigError(f"base_url must look like http://127.0.0.1:8000/v1, not {url!r}.")
        if api_key_env is not None and not os.environ.get(api_key_env):
            raise ConfigError(
                f"The environment variable {api_key_env}, which should hold the key, is not set."
            )
        if not timeout_s > 0 or max_retries < 0 or max_concurrency < 1:
            raise ConfigError(
                "timeout_s must be above 0, max_retries at least 0 and max_concurrency at least 1."
            )
        _openai()
        self.model = model
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self.max_concurrency = max_concurrency
        self.extra = dict(extra or {})
        self.takes_schema = takes_schema
        self._api_key_env = api_key_env
        self._without_schema: set[str] = set()  # addresses of servers that refused one

    @property
    def fingerprint(self) -> str:
        """Names the model: where it is served, what it is called there, and what is asked besides."""
        servers = sorted(url.rstrip("/") for url in self.base_urls)
        return json.dumps([servers, self.model, self.extra], sort_keys=True)

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """Generate replies; see `LanguageModel`.

        Raises:
            WMRLError: An endpoint refuses the key, or does not know the model: no retry would help.
        """
        seen: Counter[str] = Counter()
        bodies = []
        for conversation in conversations:
            for _ in range(samples):
                # By content, so that the reply to a question does not depend on what else is asked.
                key = json.dumps([sampling.seed, conversation])
                bodies.append(self._body(conversation, sampling, f"{seen[key]} {key}"))
                seen[key] += 1
        replies = _run(self._ask_all(bodies)) if bodies else []
        return [replies[i : i + samples] for i in range(0, len(replies), samples)]

    def count_tokens(self, text: str) -> int:
        """An estimate, since the endpoint keeps its tokenizer: one token for three bytes, rounded up."""
        return math.ceil(len(text.encode()) / 3)

    def _body(self, conversation: Sequence[Message], sampling: Sampling, seed_key: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": list(conversation),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.seed is not None:
            fields["seed"] = int.from_bytes(hashlib.sha256(seed_key.encode()).digest()[:4], "little") >> 1
        if self.takes_schema and sampling.schema is not None:
            schema = {"name": "answer", "schema": dict(sampling.schema), "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.extra:
            fields["extra_body"] = self.extra
        return fields

    async def _ask_all(self, bodies: Sequence[dict[str, Any]]) -> list[Generation]:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._client(url)) for url in self.base_urls]
            servers = _Servers(
                [_Server(url, client) for url, client in zip(self.base_urls, clients, strict=True)]
            )
            allowed = asyncio.Semaphore(self.max_concurrency)

            async def ask(body: dict[str, Any]) -> Generation:
                async with allowed:
                    return await self._ask(servers, body)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(body)) for body in bodies]
            return [task.result() for task in tasks]

    def _client(self, url: str) -> AsyncOpenAI:
        openai = _openai()
        local = urlsplit(url).hostname in _LOOPBACK
        return openai.AsyncOpenAI(
            base_url=url,
            api_key="none" if self._api_key_env is None else os.environ[self._api_key_env],
            organization="",
            project="",
            timeout=self.timeout_s,
            max_retries=0,
            # A proxy cannot reach this machine's own ports, and a redirect would carry the key elsewhere.
            http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False, trust_env=not local),
        )

    async def _ask(self, servers: _Servers, body: dict[str, Any]) -> Generation:
        """One request with its retries."""
        problem = ""
        tried: set[_Server] = set()
        for attempt in range(self.max_retries + 1):
            server = await servers.next(tried)
            tried.add(server)
            answer = await self._post_plain_if_refused(server, body)
            if isinstance(answer, bytes):
                return _generation(answer)
            problem = answer.problem
            if answer.final:
                break
            pause = random.uniform(0.5, 1.0) * 2.0**attempt
            server.rest(
                min(pause if answer.retry_after_s is None else answer.retry_after_s, _LONGEST_PAUSE_S)
            )
        return Generation("", finished=False, error=problem)

    async def _post_plain_if_refused(self, server: _Server, body: dict[str, Any]) -> bytes | _Failure:
        """Post it, and where the server refuses it with a schema, at once without one.

        What a refusal says is in no common form, so that the second request decides: if it is answered, the
        schema was what the server could not take.
        """
        plain = {name: value for name, value in body.items() if name != "response_format"}
        if server.url in self._without_schema:
            body = plain
        answer = await self._post(server, body)
        if isinstance(answer, bytes) or answer.status not in _REFUSED_SCHEMA or len(plain) == len(body):
            return answer
        answer = await self._post(server, plain)
        if isinstance(answer, bytes):
            self._without_schema.add(server.url)
        return answer

    async def _post(self, server: _Server, body: dict[str, Any]) -> bytes | _Failure:
        openai, url = _openai(), f"{server.url.rstrip('/')}/chat/completions"
        unsent = _NOT_SENT if self._api_key_env is None else _NOT_SENT[1:]
        headers = {name: openai.Omit() for name in unsent}
        completions = server.client.chat.completions.with_streaming_response
        try:
            # Not left to the package: its time limit is on each silence, and a server may drip for ever.
            async with (
                asyncio.timeout(self.timeout_s),
                completions.create(**body, extra_headers=headers) as response,
            ):
                return await _read(response)
        except openai.APIStatusError as error:
            problem = f"{url} answers {error.status_code}: {_server_message(error.response)}"
            if error.status_code in _WRONG_SETTINGS:
                raise WMRLError(problem) from error
            final = error.status_code not in _WORTH_A_RETRY
            return _Failure(problem, final, _retry_after(error.response), error.status_code)
        except (openai.APIConnectionError, OSError, TimeoutError) as error:
            cause = str(error.__cause__ or error).rstrip(".") or f"none within {self.timeout_s:g} seconds"
            return _Failure(f"No answer from {url}: {cause}.")


@dataclass(frozen=True)
class _Failure:
    """Why an attempt failed, whether another is useless, the pause that is asked for, and the status."""

    problem: str
    final: bool = False
    retry_after_s: float | None = None
    status: int | None = None


class _Server:
    """One endpoint, and until when it is left alone."""

    def __init__(self, url: str, client: AsyncOpenAI) -> None:
        self.url = url
        self.client = client
        self.ready_at = 0.0

    def rest(self, seconds: float) -> None:
        """Leave it alone for so long."""
        self.ready_at = max(self.ready_at, asyncio.get_running_loop().time() + seconds)


class _Servers:
    """Servers in turns, those that rest aside."""

    def __init__(self, servers: Sequence[_Server]) -> None:
        self._servers = list(servers)
        self._turn = 0

    async def next(self, tried: set[_Server]) -> _Server:
        """The next one that is ready, best one not tried yet; where all rest, the first to be ready again."""
        now = asyncio.get_running_loop().time()
        order = self._servers[self._turn :] + self._servers[: self._turn]
        chosen = min(order, key=lambda server: (max(server.ready_at, now), server in tried))
        self._turn = (self._servers.index(chosen) + 1) % len(self._servers)
        await asyncio.sleep(max(0.0, chosen.ready_at - now))
        return chosen


def _openai() -> ModuleType:
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError("openai", "openai") from error
    return openai


def _run(work: Coroutine[Any, Any, list[Generation]]) -> list[Generation]:
    """Run it to its end, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _alone(work)
    results: list[list[Generation]] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(_alone(work))
        except BaseException as error:  # raised again in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=target, name="wmrl-openai")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _alone(work: Coroutine[Any, Any, list[Generation]]) -> list[Generation]:
    """In a loop of its own; of several errors at once the first is raised."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _read(response: Any) -> bytes:
    """The body; no more of it than an answer may have."""
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in response.iter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > _MAX_REPLY_BYTES:
                break
    except Exception as error:  # the package's HTTP client, which it does not name, has errors of its own
        raise ConnectionError(f"The answer broke off: {error}") from error
    return b"".join(chunks)


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


def _server_message(response: Any) -> str:
    """What the server says is wrong: the message of a JSON error, or the beginning of any other text."""
    text = response.content[:2000].decode(errors="replace")
    try:
        found = json.loads(text)
        text = str(found.get("message") or found["error"]["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return " ".join(text.split())[:300] or response.reason_phrase


def _retry_after(response: Any) -> float | None:
    """Seconds of the Retry-After header; a date there counts as none."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return None
