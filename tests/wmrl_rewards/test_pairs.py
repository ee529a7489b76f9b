import sqlite3

import numpy as np
import pytest

from wmrl_envs.errors import WMRLError
from wmrl_rewards import Pair, PairPool


@pytest.fixture(params=["memory", "file"])
def pool(request, tmp_path):
    return PairPool(None if request.param == "memory" else tmp_path / "run.sqlite")


def test_pairs_come_in_the_order_of_step_group_member_however_they_went_in(pool):
    rows = [Pair(0.1 * i, 0.05 * i, step, group, i) for step in (2, 0) for group in (1, 0) for i in (1, 0)]
    pool.add_all(rows)
    pairs = pool.pairs()
    keys = list(zip(pairs.step.tolist(), pairs.group.tolist(), pairs.member.tolist(), strict=True))
    assert keys == sorted(keys)
    assert sorted(pairs.rows(), key=repr) == sorted(rows, key=repr)


def test_pairs_of_earlier_steps_only(pool):
    pool.add_all(Pair(0.5, 0.5, step, 0, 0) for step in range(5))
    assert pool.pairs(before_step=3).step.tolist() == [0, 1, 2]


def test_truncate_drops_a_step_and_all_later_ones(pool):
    pool.add_all(Pair(0.5, 0.5, step, 0, 0) for step in range(5))
    pool.truncate(3)
    assert pool.pairs().step.tolist() == [0, 1, 2]
    pool.add(0.25, 0.75, 3, 0, 0)
    assert len(pool) == 4


def test_an_empty_pool_gives_empty_columns(pool):
    pairs = pool.pairs()
    assert len(pool) == len(pairs) == 0
    assert pairs.predicted.dtype == np.float64
    assert pairs.rows() == []


def test_contexts_are_kept(pool):
    pool.add(0.5, 0.5, 0, 0, 0, context={"task": "digits", "features": [1.5, None]})
    pool.add(0.5, 0.5, 0, 0, 1)
    assert pool.pairs().context == ({"task": "digits", "features": [1.5, None]}, None)


def test_scores_come_back_bit_for_bit(pool):
    scores = np.random.default_rng(0).random((200, 2))
    pool.add_all(Pair(p, r, 0, 0, i) for i, (p, r) in enumerate(scores.tolist()))
    pairs = pool.pairs()
    assert np.array_equal(np.column_stack([pairs.predicted, pairs.real]), scores)


def test_a_repeated_pair_is_refused_and_takes_none_of_its_step_along(pool):
    pool.add(0.5, 0.5, 1, 0, 0)
    with pytest.raises(WMRLError, match=r"step 1 is in the pool already.*truncate"):
        pool.add_all([Pair(0.5, 0.5, 1, 0, 1), Pair(0.6, 0.6, 1, 0, 0)])
    assert len(pool) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.01, 1.01])
def test_a_missing_or_impossible_score_is_refused_and_named(pool, bad):
    for predicted, real in ((bad, 0.5), (0.5, bad)):
        with pytest.raises(WMRLError, match=r"step 1, group 2, member 3"):
            pool.add_all([Pair(0.5, 0.5, 0, 0, 0), Pair(predicted, real, 1, 2, 3)])
    assert len(pool) == 0


def test_a_file_is_there_for_the_next_process_and_shares_with_other_tables(tmp_path):
    path = tmp_path / "run.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE turns (text TEXT)")
    connection.commit()
    pool = PairPool(path)
    pool.add(0.25, 0.75, 0, 1, 2)
    pool.close()
    assert PairPool(path).pairs().rows() == [Pair(0.25, 0.75, 0, 1, 2)]
    assert connection.execute("SELECT COUNT(*) FROM turns").fetchone() == (0,)
