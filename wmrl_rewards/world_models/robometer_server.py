"""`RobometerServer`: Robometer behind its own HTTP server, on a machine that has the accelerator.

The server is upstream's (``robometer/evals/eval_server.py``): ``POST /evaluate_batch_npy`` takes a form with
a field of JSON for each rollout and its frames as a file of numpy's format, ``GET /health`` says whether it
runs. It knows no passwords: let it listen where only those come who may. Whatever it answers is checked, no
redirect is followed, no proxy is asked, and a time limit holds for the whole answer, so that a server that
drips cannot hold a run.
"""

from __future__ import annotations

import http.client
import io
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.prediction import PredictionRequest
from wmrl_rewards.world_models.progress_values import (
    NUM_FRAMES,
    Progress,
    ProgressWorldModel,
    Reduction,
    image_fault,
    uniform_indices,
)

__all__ = ["RobometerServer"]

_MAX_REPLY_BYTES = 16 * 2**20
_SLACK = 1e-3  # what rounding in 16 bits may put a probability beyond 0 and 1


class RobometerServer(ProgressWorldModel):
    """Progress of any task, seen by a Robometer server.

    Args:
        url: Address of the server, for example ``http://127.0.0.1:8001``.
        reduction: How a score is made of the eight values; see `progress_values`.
        batch_size: Rollouts in one request.
        timeout_s: Longest time that one attempt may take, from the first byte to the last.
        max_retries: Further attempts where the server could not be reached, or says that it is busy.
        pause_s: Pause before the first further attempt; each later one is twice as long.

    Raises:
        ConfigError: A setting is out of its range.
    """

    def __init__(
        self,
        url: str,
        *,
        reduction: Reduction = "potential",
        batch_size: int = 16,
        timeout_s: float = 120.0,
        max_retries: int = 2,
        pause_s: float = 1.0,
    ) -> None:
        super().__init__(reduction)
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"url must look like http://127.0.0.1:8001, not {url!r}.")
        if not timeout_s > 0 or max_retries < 0 or batch_size < 1 or pause_s < 0:
            raise ConfigError(
                "timeout_s must be above 0, batch_size at least 1, max_retries and pause_s not negative."
            )
        self.url = url.rstrip("/")
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self.pause_s = pause_s

    def health(self) -> Mapping[str, Any]:
        """What the server says of itself.

        Raises:
            WMRLError: It cannot be reached, or is not healthy.
        """
        try:
            found = json.loads(self._exchange("GET", "/health"))
        except (_FailureError, ValueError) as error:
            raise WMRLError(f"There is no Robometer server at {self.url}: {error}") from error
        if not isinstance(found, dict) or found.get("status") != "healthy":
            raise WMRLError(f"The server at {self.url} does not say that it is healthy: {str(found)[:80]}.")
        return found

    def progress(self, requests: Sequence[PredictionRequest]) -> list[Progress]:
        """Progress and success at each of eight frames. See `ProgressWorldModel`.

        Args:
            requests: Each with ``frames``, uint8 of shape (T, H, W, 3) and T at least 1, and a ``task``.
        """
        faults = [_fault(request) for request in requests]
        good = [request for request, fault in zip(requests, faults, strict=True) if fault is None]
        starts = range(0, len(good), self.batch_size)
        seen = iter([one for at in starts for one in self._batch(good[at : at + self.batch_size])])
        return [next(seen) if fault is None else Progress(error=fault) for fault in faults]

    def _batch(self, requests: Sequence[PredictionRequest]) -> list[Progress]:
        boundary = secrets.token_hex(16)
        body = b"".join([*_form(requests, boundary), f"--{boundary}--\r\n".encode()])
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        problem = ""
        for attempt in range(self.max_retries + 1):
            if attempt:
                time.sleep(self.pause_s * 2 ** (attempt - 1))
            try:
                return _read(self._exchange("POST", "/evaluate_batch_npy", body, headers), len(requests))
            except _FailureError as failure:
                problem = str(failure)
                if failure.final:
                    break
        return [Progress(error=f"The Robometer server at {self.url} gave no answer. {problem}")] * len(
            requests
        )

    def _exchange(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """One request; the body of its answer.

        Raises:
            _FailureError: There is no answer, or it is not 200.
        """
        address = urlsplit(self.url + path)
        assert address.hostname is not None
        if address.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.hostname, address.port, timeout=self.timeout_s, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=self.timeout_s)
        late = threading.Event()
        try:
            connection.connect()
            with _cut_off_after(self.timeout_s, connection.sock, late):
                connection.request(method, address.path, body, dict(headers or {}))
                response = connection.getresponse()
                answer = response.read(_MAX_REPLY_BYTES + 1)
                if response.length and len(answer) <= _MAX_REPLY_BYTES:
                    raise http.client.IncompleteRead(answer, response.length)
        except (OSError, http.client.HTTPException) as error:
            raise _FailureError(self._silence(late, error)) from error
        finally:
            connection.close()
        if late.is_set():
            raise _FailureError(self._silence(late, None))
        if response.status != 200:
            said = " ".join(answer[:300].decode(errors="replace").split())
            final = response.status < 500 and response.status not in (408, 425, 429)
            raise _FailureError(f"It answers {response.status}: {said or response.reason}", final)
        if len(answer) > _MAX_REPLY_BYTES:
            raise _FailureError(f"Its answer has more than {_MAX_REPLY_BYTES} bytes.", True)
        return answer

    def _silence(self, late: threading.Event, error: Exception | None) -> str:
        if late.is_set() or isinstance(error, TimeoutError):
            return f"It was not done within {self.timeout_s:g} seconds."
        return f"The connection failed: {error or type(error).__name__}."


class _FailureError(Exception):
    """Why there is no answer, and whether asking again is useless."""

    def __init__(self, problem: str, final: bool = False) -> None:
        super().__init__(problem)
        self.final = final


@contextmanager
def _cut_off_after(seconds: float, sock: socket.socket, late: threading.Event) -> Iterator[None]:
    """Shut a socket down once the time is over: its own limit is on each silence only."""

    def cut() -> None:
        late.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _fault(request: PredictionRequest) -> str | None:
    if not request.task.strip():
        return "The request names no task, so that there is nothing to judge by."
    return image_fault(request.frames)


def _form(requests: Sequence[PredictionRequest], boundary: str) -> Iterator[bytes]:
    """The parts of the form, in the format that upstream's client writes."""
    for number, request in enumerate(requests):
        frames = request.frames[uniform_indices(len(request.frames))]
        key = f"sample_{number}_trajectory_frames"
        trajectory = {
            "frames": {"__numpy_file__": key},
            "frames_shape": frames.shape,
            "task": request.task.encode("utf-8", "replace").decode("utf-8"),
            "id": str(number),
            "metadata": {},
            "video_embeddings": None,
            "text_embedding": None,
        }
        sample = {"sample_type": "progress", "trajectory": trajectory}
        yield _part(boundary, f'name="sample_{number}"', json.dumps(sample).encode())
        disposition = f'name="{key}"; filename="{key}.npy"\r\nContent-Type: application/octet-stream'
        yield _part(boundary, disposition, _npy(frames))


def _part(boundary: str, disposition: str, content: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return b"".join([head.encode(), content, b"\r\n"])


def _npy(array: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _read(answer: bytes, count: int) -> list[Progress]:
    """Values of each rollout.

    Raises:
        _FailureError: The answer is not what was asked for.
    """
    try:
        found = json.loads(answer)
        progress = found["outputs_progress"]["progress_pred"]
        success = (found.get("outputs_success") or {}).get("success_probs")
        rows = [_row(row) for row in progress]
        solved = [None] * len(rows) if success is None else [_row(row) for row in success]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _FailureError(f"Its answer is not progress of rollouts: {answer[:80]!r}.", True) from error
    if not len(rows) == len(solved) == count:
        raise _FailureError(f"It gave {len(rows)} rows of progress for {count} rollouts.", True)
    return [Progress(row, of_row) for row, of_row in zip(rows, solved, strict=True)]


def _row(values: Any) -> tuple[float, ...]:
    """Eight probabilities; anything else is a ValueError."""
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != NUM_FRAMES or not all(-_SLACK <= v <= 1 + _SLACK for v in values):
        raise ValueError(f"{NUM_FRAMES} values in [0, 1] are wanted")
    return tuple(min(1.0, max(0.0, float(value))) for value in values)
