import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.matching import positions, reference_index


@pytest.mark.parametrize(
    "given_as", [["7", "12"], ["7.0", "12.0"], ["007", "12"], [" 7", "12 "], ["7e0", "1.2e1"]]
)
def test_whole_numbers_match_in_any_spelling(given_as):
    reference = reference_index(pd.Series(["12", "7"]))
    assert reference.dtype == "int64"
    assert positions(pd.Series(given_as), reference).tolist() == [1, 0]


@pytest.mark.parametrize("numbers", [[7, 12], [7.0, 12.0]])
def test_numbers_match_numbers(numbers):
    assert positions(pd.Series(numbers), reference_index(pd.Series(["12", "7.0"]))).tolist() == [1, 0]


@pytest.mark.parametrize("stranger", ["7.5", "", "nan", "inf", "seven", "1e300", "True"])
def test_what_is_no_whole_number_matches_none(stranger):
    assert positions(pd.Series([stranger, "0"]), reference_index(pd.Series(["0", "7", "1"]))).tolist() == [
        -1,
        0,
    ]


def test_numbers_that_would_merge_are_texts():
    reference = reference_index(pd.Series(["7", "007"]))
    assert positions(pd.Series(["007", " 7", "7.0"]), reference).tolist() == [1, 0, -1]


def test_texts_match_without_blanks_around():
    reference = reference_index(pd.Series(["a.png", "NA", "b c"]))
    assert positions(pd.Series(["b c", " a.png ", "NA", "A.png"]), reference).tolist() == [2, 0, 1, -1]


def test_long_numbers_stay_apart():
    ids = ["9007199254740993", "9007199254740992"]  # 2**53 + 1 has no float of its own
    assert positions(pd.Series(ids), reference_index(pd.Series(ids))).tolist() == [0, 1]
    assert positions(
        pd.Series([9007199254740992, 9007199254740993]), reference_index(pd.Series(ids))
    ).tolist() == [1, 0]


@given(st.lists(st.text(), unique_by=str.strip, min_size=1), st.randoms())
def test_a_permutation_is_found_again(texts, random):
    order = random.sample(range(len(texts)), len(texts))
    shuffled = pd.Series([texts[place] for place in order], dtype=object)
    reference = reference_index(pd.Series(texts, dtype=object))
    if reference.is_unique:
        assert positions(shuffled, reference).tolist() == order
