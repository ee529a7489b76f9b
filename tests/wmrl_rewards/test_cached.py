"""The store of predictions: asked once, by content, whoever writes; failures are never remembered."""

import multiprocessing
import os
import signal
import sqlite3
import threading
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stubs import CHATML, tiny_language_model
from tests.wmrl_rewards.test_contract import Hashed
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards import (
    CachedWorldModel,
    LanguageModelWorldModel,
    LearnedWorldModel,
    Prediction,
    PredictionRequest,
    check_world_model,
)
from wmrl_rewards.language_models import Generation, HuggingFaceModel, OpenAIModel, Sampling
from wmrl_rewards.world_models import prompts
from wmrl_rewards.world_models.cached import PredictionStore, request_key

REQUEST = PredictionRequest("T", "print(1)", history=[("a", "b")], context={"split": "public"})
GRADED = Evaluation(Outcome("ok", "é\ud800", "", 1.5), Grade("ok", 0.9, 0.75), source="world_model")


class Counting(Hashed):
    fingerprint = "counting"

    def __init__(self):
        self.asked = []

    def predict(self, requests):
        self.asked += requests
        return super().predict(requests)


def ask(*solutions):
    return [PredictionRequest("T", solution) for solution in solutions]


def test_what_was_predicted_once_is_not_asked_again(tmp_path):
    model, path = Counting(), tmp_path / "runs" / "predictions.sqlite"
    expected = Hashed().predict(ask("a", "b", "a", "c"))
    assert CachedWorldModel(model, path).predict(ask("a", "b", "a")) == expected[:3]
    assert [request.solution for request in model.asked] == ["a", "b"]
    again = CachedWorldModel(model, path)
    assert again.predict(ask("a", "b", "a", "c")) == expected
    assert [request.solution for request in model.asked] == ["a", "b", "c"]
    assert again.predict([]) == []


def test_failures_are_not_remembered(tmp_path):
    model = Counting()
    cached = CachedWorldModel(model, tmp_path / "p.sqlite")
    for _ in range(2):
        failed, good = cached.predict(ask("raise", "a"))
        assert (failed.score, good.score) == (None, Hashed().predict(ask("a"))[0].score)
    assert [request.solution for request in model.asked] == ["raise", "a", "raise"]
    assert len(cached.store) == 1


def test_it_keeps_the_contract(tmp_path):
    check_world_model(CachedWorldModel(Counting(), tmp_path / "p.sqlite"))


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction(0.5),
        Prediction(0.0, outcome=Evaluation(Outcome("error", stderr="KeyError"), source="world_model")),
        Prediction(0.75, outcome=GRADED, samples=(0.5, 1.0), seconds=2.5, prompt_tokens=900, new_tokens=7),
        Prediction(1 / 3, outcome=Evaluation(Outcome("ok"), Grade("bad_ids", message="Row 7."))),
    ],
)
def test_a_prediction_comes_back_as_it_was(tmp_path, prediction):
    store = PredictionStore(tmp_path / "p.sqlite")
    store.store({"key": prediction})
    store.store({"key": Prediction(0.125)})  # the first one stays
    (found,) = store.load(["key", "other", "key"]).values()
    assert found == prediction
    assert asdict(found) == asdict(prediction)  # costs too, which equality leaves out


def test_many_keys_at_once(tmp_path):
    store = PredictionStore(tmp_path / "p.sqlite")
    many = {f"{number}": Prediction(number / 2000) for number in range(2000)}
    store.store(many)
    assert store.load(many) == many


def test_a_key_names_all_that_a_prediction_depends_on():
    competition = load_competition("digits")
    others = [
        replace(REQUEST, task="U"),
        replace(REQUEST, solution="print(2)"),
        replace(REQUEST, solution=None),
        replace(REQUEST, history=[("a", "c")]),
        replace(REQUEST, history=[("a", "b"), ("a", "b")]),
        replace(REQUEST, history=[["a", "b", "a", "b"]]),
        replace(REQUEST, history=()),
        replace(REQUEST, context={"split": "private"}),
        replace(REQUEST, context={"split": "public", "competition": competition}),
        replace(REQUEST, context={"split": "public", "competition": load_competition("fashion")}),
        replace(REQUEST, frames=np.zeros((2, 2))),
        replace(REQUEST, frames=np.zeros((4, 1))),
        replace(REQUEST, frames=np.zeros((2, 2), dtype=np.float32)),
        replace(REQUEST, frames=b"\0" * 32),
        replace(REQUEST, frames=1),
        replace(REQUEST, frames="1"),
        replace(REQUEST, frames=True),
    ]
    keys = [request_key(request, "model") for request in [REQUEST, *others]]
    assert None not in keys
    assert len({*keys, request_key(REQUEST, "another model")}) == len(others) + 2
    assert request_key(replace(REQUEST, history=(("a", "b"),)), "model") == keys[0]


@given(st.text(), st.text(), st.lists(st.tuples(st.text(), st.text()), max_size=2))
def test_any_text_has_a_key_and_no_two_have_one(task, code, history):
    request = PredictionRequest(task, code, history=history)
    key = request_key(request, "m")
    assert len(key) == 64
    assert key != request_key(replace(request, task=task + "x"), "m")
    assert key != request_key(replace(request, task=code, solution=task), "m") or task == code


def test_what_cannot_be_named_is_asked_each_time(tmp_path):
    model = Counting()
    cached = CachedWorldModel(model, tmp_path / "p.sqlite")
    odd = [replace(REQUEST, context={"simulator": object()}), replace(REQUEST, frames=np.array([object()]))]
    assert [request_key(request, "m") for request in odd] == [None, None]
    for _ in range(2):
        assert cached.predict(odd) == Hashed().predict(odd)
    assert len(model.asked) == 4
    assert len(cached.store) == 0


def test_a_board_that_changes_makes_another_key(tmp_path):
    import shutil

    folder = tmp_path / "digits"
    shutil.copytree(load_competition("digits").root, folder)
    keys = [request_key(replace(REQUEST, context={"competition": load_competition(folder)}), "m")]
    board = folder / "private" / "public_leaderboard.csv"
    board.write_text(board.read_text() + "99,0.01\n")
    keys.append(request_key(replace(REQUEST, context={"competition": load_competition(folder)}), "m"))
    assert keys[0] != keys[1]


class Echo:
    """A language model whose fingerprint is its word."""

    def __init__(self, word="one"):
        self.fingerprint = word

    def generate(self, conversations, sampling, samples=1):
        return [[Generation("status: ok\npercentile: 0.5", (1, 2, 3))] * samples for _ in conversations]

    def count_tokens(self, text):
        return len(text.split())


def test_a_language_models_fingerprint_names_prompt_sampling_and_seed(monkeypatch):
    hot = Sampling(temperature=1.0, seed=3)
    models = [
        LanguageModelWorldModel(Echo()),
        LanguageModelWorldModel(Echo("two")),
        LanguageModelWorldModel(Echo(), system_prompt="Guess."),
        LanguageModelWorldModel(Echo(), predict="percentile"),
        LanguageModelWorldModel(Echo(), max_context_tokens=4096),
        LanguageModelWorldModel(Echo(), sampling=hot),
        LanguageModelWorldModel(Echo(), sampling=replace(hot, seed=4)),
        LanguageModelWorldModel(Echo(), sampling=hot, samples=2),
    ]
    names = {model.fingerprint for model in models}
    assert len(names) == len(models)
    assert LanguageModelWorldModel(Echo()).fingerprint == models[0].fingerprint
    monkeypatch.setattr(prompts, "user_message", lambda *texts: "\n".join(map(str, texts)))
    assert LanguageModelWorldModel(Echo()).fingerprint not in names


def test_a_model_in_process_is_named_by_its_weights(tmp_path):
    first = tiny_language_model(tmp_path / "first")
    same = tiny_language_model(tmp_path / "same")
    names = [
        HuggingFaceModel(first, device="cpu").fingerprint,
        HuggingFaceModel(tiny_language_model(tmp_path / "other", seed=1), device="cpu").fingerprint,
        HuggingFaceModel(first, device="cpu", chat_template=CHATML + " ").fingerprint,
    ]
    assert HuggingFaceModel(same, device="cpu").fingerprint == names[0]
    assert len(set(names)) == 3


def test_a_server_is_named_by_its_address_and_model():
    names = [
        OpenAIModel("http://127.0.0.1:9/v1", "a").fingerprint,
        OpenAIModel("http://127.0.0.1:9/v1", "b").fingerprint,
        OpenAIModel("http://127.0.0.1:8/v1", "a").fingerprint,
        OpenAIModel("http://127.0.0.1:9/v1", "a", extra={"top_k": 1}).fingerprint,
    ]
    assert OpenAIModel("http://127.0.0.1:9/v1/", "a").fingerprint == names[0]
    both = ["http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1"]
    names.append(OpenAIModel(both, "a").fingerprint)
    assert OpenAIModel(both[::-1], "a").fingerprint == names[-1]
    assert len(set(names)) == 5


def test_what_has_no_name_cannot_be_stored(tmp_path):
    path = tmp_path / "p.sqlite"
    with pytest.raises(ConfigError, match="of a LearnedWorldModel cannot be stored: it has no fingerprint"):
        CachedWorldModel(LearnedWorldModel(len), path)
    with pytest.raises(ConfigError, match="give the sampling a seed"):
        CachedWorldModel(LanguageModelWorldModel(Echo(), sampling=Sampling()), path)
    nameless = Echo()
    del nameless.fingerprint
    with pytest.raises(ConfigError, match="The language model Echo has no fingerprint"):
        CachedWorldModel(LanguageModelWorldModel(nameless), path)
    assert not path.exists()
    CachedWorldModel(Hashed(), path, fingerprint="hashed")


def test_a_language_model_says_what_its_predictions_cost():
    model = LanguageModelWorldModel(Echo(), predict="percentile", system_prompt="Say it.")
    asked = [PredictionRequest("one two three", "print(1)")] * 2
    for prediction in model.predict(asked):
        assert prediction.seconds > 0
        assert prediction.prompt_tokens == 2 + 3 + len(["```python", "print(1)", "```"])
        assert prediction.new_tokens == 3
    assert Prediction(0.5, seconds=1.0, new_tokens=3) == Prediction(0.5)


def test_a_broken_world_model_is_refused(tmp_path):
    class TooFew(Counting):
        def predict(self, requests):
            return []

    with pytest.raises(WMRLError, match="0 answers to 1 requests"):
        CachedWorldModel(TooFew(), tmp_path / "p.sqlite").predict(ask("a"))


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_file_that_is_no_store_is_named(tmp_path, place):
    (tmp_path / "file").write_text("not a database, but long enough to be taken for one" * 10)
    path = tmp_path / "file" if place == "file" else tmp_path / "file" / "p.sqlite"
    with pytest.raises(ConfigError, match=r"The prediction store .*file.* cannot be"):
        CachedWorldModel(Counting(), path)


def _predict_many(path: Path, worker: int) -> None:
    cached = CachedWorldModel(Counting(), path)
    for start in range(0, 40, 5):
        mine = ask(*(f"shared {n}" for n in range(start, start + 5)), f"own {worker} {start}")
        assert cached.predict(mine) == Hashed().predict(mine)


def test_processes_share_a_file(tmp_path):
    path = tmp_path / "p.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_predict_many, args=(path, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    model = Counting()
    cached = CachedWorldModel(model, path)
    assert len(cached.store) == 40 + 3 * 8
    shared = ask(*(f"shared {n}" for n in range(40)))
    assert cached.predict(shared) == Hashed().predict(shared)
    assert model.asked == []


def test_threads_share_a_store(tmp_path):
    model = Counting()
    cached = CachedWorldModel(model, tmp_path / "p.sqlite")
    failures = []

    def work() -> None:
        try:
            for number in range(30):
                assert cached.predict(ask(f"{number}")) == Hashed().predict(ask(f"{number}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(cached.store) == 30


def test_what_was_stored_survives_a_kill(tmp_path):
    path = tmp_path / "p.sqlite"
    child = os.fork()
    if child == 0:
        CachedWorldModel(Counting(), path).predict(ask("a", "b"))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    model = Counting()
    CachedWorldModel(model, path).predict(ask("a", "b", "c"))
    assert [request.solution for request in model.asked] == ["c"]
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
