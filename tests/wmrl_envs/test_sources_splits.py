import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import CATEGORIES
from wmrl_envs.autoresearch.sources.dsbench_tasks import tasks
from wmrl_envs.autoresearch.sources.splits import (
    Task,
    find_task,
    make_split,
    name_overlap,
    paper_split,
    pool,
    split_of,
)

PUBLISHED = Path(__file__).with_name("mle_dojo_split.csv")


def published():
    """The authors' lists."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_rule_gives_the_published_lists():
    ours = {
        (split, category, task.slug, task.size_bytes, task.higher_is_better)
        for split, categories in paper_split().items()
        for category, members in categories.items()
        for task in members
    }
    theirs = {
        (
            row["split"],
            row["category"],
            row["slug"],
            int(row["size_bytes"]),
            row["higher_is_better"] == "True",
        )
        for row in published()
        if row["split"] != "heldout-dropped"
    }
    assert ours == theirs
    assert sum(split == "train" for split, *_ in ours) == 45
    assert sum(split == "heldout" for split, *_ in ours) == 14
    assert len(pool()) == 125


def test_nothing_is_trained_on_and_held_out():
    slugs = [
        task.slug for categories in paper_split().values() for group in categories.values() for task in group
    ]
    assert len(slugs) == len(set(slugs)) == 59
    for row in published():
        if row["split"] in ("train", "heldout"):
            assert split_of(row["slug"]) == row["split"]
    assert split_of("a-competition-of-ones-own") == "train"


def test_what_is_contaminated_says_why():
    assert "label" in find_task("random-acts-of-pizza").contamination
    assert "public data set" in find_task("dog-breed-identification").contamination
    assert find_task("spooky-author-identification").contamination is None
    assert find_task("spooky-author-identification").category == "tabular"
    assert find_task("unheard-of") is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["Audio", "Image", "NLP", "Text Mining", "Tabular"]), st.integers(0, 99))
    )
)
def test_the_rule_on_any_pool(rows):
    made = [Task(f"task-{i}", size, True, ("Beginner", tag)) for i, (tag, size) in enumerate(rows)]
    split = make_split(made)
    for category in CATEGORIES:
        train, held_out = split["train"][category], split["heldout"][category]
        members = [task for task in made if task.category == category]
        assert len(train) == min(15, len(members))
        assert len(held_out) == min(5, len(members) - len(train))
        left = [task.size_bytes for task in members if task not in train and task not in held_out]
        sizes = [task.size_bytes for task in [*train, *held_out]]
        assert sizes == sorted(sizes)
        assert not left or not sizes or max(sizes) <= min(left)


def test_overlap_of_the_two_suites():
    train = [task.slug for group in paper_split()["train"].values() for task in group]
    shared = {
        match.first for match in name_overlap(train, [task.name for task in tasks()]) if match.kind == "exact"
    }
    assert shared == set(train) & {task.name for task in tasks()}


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("titanic", "titanic", "exact"),
        ("Titanic ", "titanic", "normalised"),
        ("spaceship_titanic", "spaceship-titanic", "normalised"),
        ("detecting-insults", "detecting-insult", "fuzzy"),
        ("titanic", "digits", None),
        ("covid-week-1", "covid-week-2", None),
        ("series-s3e1", "series-s3e11", None),
    ],
)
def test_names_that_may_mean_the_same(first, second, kind):
    assert [match.kind for match in name_overlap([first], [second])] == ([kind] if kind else [])


def test_the_surest_match_comes_first():
    found = name_overlap(["a-long-name", "other"], ["a-long-nam", "a_long_name", "a-long-name"])
    assert [match.second for match in found] == ["a-long-name", "a_long_name", "a-long-nam"]
    assert found[0].similarity == found[1].similarity == 1.0 > found[2].similarity > 0.85
    assert name_overlap([], ["x"]) == []
