"""The cache: exactly what was stored comes back, keyed by everything that matters, whoever writes."""

import dataclasses
import multiprocessing
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import SandboxError
from wmrl_envs.evaluation import Grade
from wmrl_envs.sandbox import ExecutionCache, Job, Result
from wmrl_envs.sandbox.cache import folder_digest


@pytest.fixture
def cache(tmp_path):
    return ExecutionCache(tmp_path / "runs/cache.sqlite")


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "public"
    folder.mkdir()
    (folder / "train.csv").write_text("id,target\n0,1\n")
    return folder


RESULT = Result(
    status="error",
    exit_code=3,
    stdout="é\n\ud800",
    stderr="Traceback",
    seconds=1.25,
    peak_memory_bytes=77,
    message="The program ended with exit code 3.",
)


def test_nothing_is_found_in_an_empty_cache(cache):
    assert cache.load("key") is None
    assert cache.load_grade("key", "grader") is None
    assert len(cache) == 0


def test_a_result_comes_back_as_it_was(cache):
    cache.store("key", RESULT)
    assert cache.load("key") == RESULT
    assert len(cache) == 1


def test_a_submission_comes_back_as_a_new_file(cache, tmp_path):
    content = os.urandom(100_000)
    original = tmp_path / "submission"
    original.write_bytes(content)
    cache.store("key", Result("ok", exit_code=0, submission_path=original))
    original.unlink()
    first, second = cache.load("key"), cache.load("key")
    assert first.submission_path != second.submission_path
    for result in (first, second):
        assert result.submission_path.read_bytes() == content
        result.submission_path.unlink()


def test_the_first_result_stays(cache):
    cache.store("key", RESULT)
    cache.store("key", dataclasses.replace(RESULT, seconds=9.0))
    assert cache.load("key").seconds == 1.25


def test_the_machines_failures_are_not_kept(cache):
    cache.store("key", Result("infrastructure", message="disk full"))
    assert cache.load("key") is None


def test_grades_are_kept_by_grader(cache):
    public, private = Grade("ok", 0.5, 0.25), Grade("bad_ids", message="Row 7 is unknown.")
    cache.store_grade("key", "public", public)
    cache.store_grade("key", "private", private)
    assert cache.load_grade("key", "public") == public
    assert cache.load_grade("key", "private") == private
    assert cache.load_grade("other", "public") is None


def test_what_did_not_end_alike_once_stays_marked(cache):
    cache.store("key", RESULT)
    assert cache.is_repeatable("key") is None
    for same, repeatable in ((True, True), (False, False), (True, False)):
        cache.store_recheck("key", same)
        assert cache.is_repeatable("key") is repeatable
    cache.store_recheck("other", True)
    assert (cache.stats().rechecked, cache.stats().differing) == (2, 1)
    cache.clear()
    assert (cache.stats().rechecked, cache.is_repeatable("key")) == (0, None)


def test_a_key_depends_on_all_that_a_result_depends_on(data_dir):
    job = Job("print(1)", data_dir)
    key = ExecutionCache.key(job, "sandbox")
    assert ExecutionCache.key(Job("print(1)", data_dir), "sandbox") == key
    others = [
        ExecutionCache.key(Job("print(1) ", data_dir), "sandbox"),
        ExecutionCache.key(Job("print(1)", data_dir, env={"A": "1"}), "sandbox"),
        ExecutionCache.key(job, "another sandbox"),
    ]
    (data_dir / "train.csv").write_text("id,target\n0,0\n")
    others.append(ExecutionCache.key(job, "sandbox"))
    assert len({key, *others}) == 5


def test_a_folders_digest_is_its_content_not_its_place(data_dir, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "train.csv").write_text("id,target\n0,1\n")
    assert folder_digest(copy) == folder_digest(data_dir)
    (copy / "train.csv").rename(copy / "other.csv")
    assert folder_digest(copy) != folder_digest(data_dir)


@given(st.text())
def test_any_code_has_a_key(code):
    assert len(ExecutionCache.key(Job(code, Path(__file__).parent), "sandbox")) == 64


def test_a_file_that_is_no_cache_is_named(tmp_path):
    path = tmp_path / "cache.sqlite"
    path.write_text("not a database, but long enough to be taken for one" * 10)
    with pytest.raises(SandboxError, match=r"cache\.sqlite cannot be used"):
        ExecutionCache(path)


def _write_many(path: Path, worker: int) -> None:
    cache = ExecutionCache(path)
    for number in range(20):
        cache.store(f"shared {number}", dataclasses.replace(RESULT, seconds=float(number)))
        cache.store(f"own {worker} {number}", RESULT)
        assert cache.load(f"shared {number}").seconds == number


def test_processes_write_at_the_same_time(cache):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(cache.path, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(cache) == 20 + 3 * 20


def test_threads_share_one_cache(cache):
    failures = []

    def work(worker: int) -> None:
        try:
            for number in range(50):
                cache.store(f"{number}", RESULT)
                cache.store_grade(f"{number}", "public", Grade("ok", 1.0, 1.0))
                assert cache.load(f"{number}") == RESULT
        except BaseException as error:
            failures.append((worker, error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(cache) == 50


def test_a_fork_gets_a_connection_of_its_own(cache):
    cache.store("before", RESULT)
    child = os.fork()
    if child == 0:
        cache.store("child", RESULT)
        os._exit(0 if cache.load("before") == RESULT else 1)
    assert os.waitpid(child, 0)[1] == 0
    cache.store("after", RESULT)
    assert len(cache) == 3
    assert sqlite3.connect(cache.path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
