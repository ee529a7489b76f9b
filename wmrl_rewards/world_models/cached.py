"""`CachedWorldModel`: what was predicted once is not asked again; predictions by content, in one SQLite file.

A prediction is a function of the request (task, solution, history, frames, the competition's leaderboard) and
of the world model (prompt, weights or server, sampling, seed): these two make the key. What has no score is
not kept, so that it is asked again.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wmrl_envs.database import SharedDatabase
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards.prediction import Prediction, PredictionRequest, WorldModel, predict_checked

__all__ = ["CachedWorldModel", "PredictionStats", "PredictionStore"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS predictions (
    key TEXT PRIMARY KEY,
    prediction TEXT NOT NULL
) WITHOUT ROWID;
"""
_KEYS_AT_ONCE = 500  # SQLite limits the number of parameters of a statement


class PredictionStats(NamedTuple):
    """What a file of predictions holds.

    Attributes:
        predictions: How many.
        seconds: What those took that say it.
        new_tokens: Tokens that were generated for those that say it.
        file_bytes: Size on disk.
    """

    predictions: int
    seconds: float
    new_tokens: int
    file_bytes: int


class PredictionStore:
    """Predictions by key; any number of threads and processes may share the file.

    Args:
        path: The SQLite file; it and its folder are made if they do not exist. Not on a network file system.

    Raises:
        ConfigError: The file cannot be opened, or is no database.
    """

    def __init__(self, path: str | Path) -> None:
        self._database = SharedDatabase(path, _SCHEMA, "prediction store")

    @classmethod
    def existing(cls, path: str | Path) -> PredictionStore:
        """Open a file that is there already; nothing is made, and no other kind of file is touched.

        Raises:
            ConfigError: There is no such file, or it holds no predictions.
        """
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error as error:
            raise ConfigError(f"There is no prediction store at {path}: {error}.") from error
        if "predictions" not in tables:
            raise ConfigError(f"{path} is a database, but not a prediction store.")
        return cls(path)

    def stats(self) -> PredictionStats:
        """Count what is stored."""
        sums = (
            "SELECT COUNT(*), TOTAL(json_extract(prediction, '$.seconds')), "
            "TOTAL(json_extract(prediction, '$.new_tokens')) FROM predictions"
        )
        with self._database.transaction() as connection:
            number, seconds, tokens = connection.execute(sums).fetchone()
        names = (f"{self._database.path}{suffix}" for suffix in ("", "-wal"))
        size = sum(Path(name).stat().st_size for name in names if Path(name).exists())
        return PredictionStats(number, seconds, int(tokens), size)

    def clear(self) -> int:
        """Remove all predictions; returns how many there were."""
        with self._database.transaction() as connection:
            return connection.execute("DELETE FROM predictions").rowcount

    def __len__(self) -> int:
        with self._database.transaction() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM predictions").fetchone()[0])

    def load(self, keys: Iterable[str]) -> dict[str, Prediction]:
        """The stored ones of these keys."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Prediction] = {}
        with self._database.transaction() as connection:
            for start in range(0, len(wanted), _KEYS_AT_ONCE):
                part = wanted[start : start + _KEYS_AT_ONCE]
                places = ", ".join("?" * len(part))
                query = f"SELECT key, prediction FROM predictions WHERE key IN ({places})"
                rows = connection.execute(query, part)
                found |= {key: _from_json(text) for key, text in rows}
        return found

    def store(self, predictions: Mapping[str, Prediction]) -> None:
        """Keep predictions, all or none; the first one to be stored under a key stays.

        One without a score says nothing and is not kept.
        """
        rows = [(key, _to_json(one)) for key, one in predictions.items() if one.score is not None]
        if rows:
            with self._database.transaction() as connection:
                connection.executemany("INSERT OR IGNORE INTO predictions VALUES (?, ?)", rows)


class CachedWorldModel:
    """A world model that remembers its predictions, those of earlier runs included.

    A request that holds something whose content cannot be named (an object of a class of the caller's in its
    context) is asked each time.

    Args:
        world_model: Who is asked for what is not stored.
        path: The SQLite file; it may hold the predictions of many world models.
        fingerprint: Names everything that a prediction depends on besides its request; None takes the world
            model's own. A world model that goes on learning has none, and cannot be stored.

    Raises:
        ConfigError: There is no fingerprint, or the file cannot be used.

    Example:
        >>> class Half:
        ...     fingerprint = "half, version 1"
        ...     def predict(self, requests):
        ...         print("asked", len(requests))
        ...         return [Prediction(0.5) for _ in requests]
        >>> model = CachedWorldModel(Half(), "predictions.sqlite")
        >>> asked = [PredictionRequest("task", "print(1)")]
        >>> model.predict(asked * 2) == model.predict(asked * 2)
        asked 1
        True
    """

    def __init__(self, world_model: WorldModel, path: str | Path, fingerprint: str | None = None) -> None:
        fingerprint = fingerprint or getattr(world_model, "fingerprint", None)
        if not fingerprint:
            raise ConfigError(
                f"Predictions of a {type(world_model).__name__} cannot be stored: it has no fingerprint that "
                "names all that they depend on."
            )
        self.world_model = world_model
        self.fingerprint = fingerprint
        self.store = PredictionStore(path)

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch; what is stored is not asked, equal requests are asked once. See `WorldModel`."""
        boards: dict[int, str] = {}
        names = [request_key(request, self.fingerprint, boards) for request in requests]
        keys = [name or f"request {number}" for number, name in enumerate(names)]
        known = self.store.load(name for name in names if name is not None)
        missing = {key: r for key, r in zip(keys, requests, strict=True) if key not in known}
        if missing:
            predictions = predict_checked(self.world_model, list(missing.values()))
            new = dict(zip(missing, predictions, strict=True))
            named = set(names)
            self.store.store({key: one for key, one in new.items() if key in named})
            known |= new
        return [known[key] for key in keys]


def request_key(
    request: PredictionRequest, fingerprint: str, boards: dict[int, str] | None = None
) -> str | None:
    """Name of a request's prediction by a world model.

    Args:
        request: The request.
        fingerprint: That of the world model.
        boards: For a batch of requests: what was found of their competitions, so that a folder is looked
            through once. It is filled here.

    Returns:
        The name; None where something in the request has no content that could be named.
    """
    digest = hashlib.sha256()
    try:
        for part in _parts([fingerprint, vars(request)], {} if boards is None else boards):
            digest.update(b"%d:" % len(part) + part)
    except _NamelessError:
        return None
    return digest.hexdigest()


class _NamelessError(TypeError):
    """Something whose content nothing names."""


def _parts(value: Any, boards: dict[int, str]) -> Iterator[bytes]:
    """Content of a value as byte strings; different contents give different sequences."""
    if value is None or isinstance(value, bool | int | float):
        yield repr(value).encode()
    elif isinstance(value, str):
        yield b"text"
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        yield b"bytes"
        yield value
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield f"{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield b"mapping %d" % len(value)
        for name in sorted(value, key=repr):
            yield from _parts(name, boards)
            yield from _parts(value[name], boards)
    elif isinstance(value, list | tuple):
        yield b"sequence %d" % len(value)
        for item in value:
            yield from _parts(item, boards)
    elif hasattr(value, "grading_version"):  # a Competition, of whatever layout
        if id(value) not in boards:
            boards[id(value)] = value.grading_version
        yield from _parts((value.name, value.metric.name, value.score_kind, boards[id(value)]), boards)
    else:
        raise _NamelessError(type(value).__name__)


def _to_json(prediction: Prediction) -> str:
    return json.dumps({**asdict(prediction), "samples": list(prediction.samples)})


def _from_json(text: str) -> Prediction:
    fields = json.loads(text)
    outcome = fields["outcome"]
    if outcome is not None:
        grade = None if outcome["grade"] is None else Grade(**outcome["grade"])
        run = None if outcome["outcome"] is None else Outcome(**outcome["outcome"])
        fields["outcome"] = Evaluation(**{**outcome, "outcome": run, "grade": grade})
    return Prediction(**{**fields, "samples": tuple(fields["samples"])})
