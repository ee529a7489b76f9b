import json
import pickle
from datetime import UTC, datetime

import gymnasium as gym
import pandas as pd
import pytest
import yaml

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.autoresearch.competition import competition_names, load_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.autoresearch.sources.mle_bench import medal_thresholds, report
from wmrl_envs.errors import CompetitionError
from wmrl_envs.evaluation import Grade

from .folders import submission

IDS = [1, 2, 3]
GRADER = """
import numpy as np
from mlebench.grade_helpers import InvalidSubmissionError

from .classes import COLUMN


def grade(submission, answers):
    if len(submission) != len(answers) or COLUMN not in submission:
        raise InvalidSubmissionError("The submission has the wrong shape.")
    both = answers.merge(submission, on="id", suffixes=("", "_predicted"))
    return float((both[COLUMN] - both[COLUMN + "_predicted"]).abs().mean())
"""
PROGRAM = """```python
import os
import pandas as pd
table = pd.read_csv(os.environ["DATA_DIR"] + "/sample_submission.csv")
table["y"] = [1, 2, 4]
table.to_csv(os.environ["SUBMISSION_PATH"], index=False)
```"""


def write_bench(root, name="small-numbers", code=None, **changes):
    """Write a competition in MLE-bench's layout, its code beside the data or elsewhere."""
    prepared, code = root / name / "prepared", code or root / name
    for folder in (prepared / "public", prepared / "private", code):
        folder.mkdir(parents=True, exist_ok=True)
    (prepared / "public" / "description.md").write_text("# Numbers\nPredict y.\n", encoding="utf-8")
    pd.DataFrame({"id": [7, 8], "y": [1, 2]}).to_csv(prepared / "public" / "train.csv", index=False)
    pd.DataFrame({"id": IDS, "y": 0}).to_csv(prepared / "public" / "sample_submission.csv", index=False)
    pd.DataFrame({"id": IDS, "y": [1, 2, 3]}).to_csv(prepared / "private" / "test.csv", index=False)
    board = pd.DataFrame({"teamId": range(4), "score": [0.1, 0.3, 0.5, 2.0]})
    board.to_csv(code / "leaderboard.csv", index=False)
    config = {
        "id": name,
        "name": "Small numbers",
        "dataset": {
            "answers": f"{name}/prepared/private/test.csv",
            "sample_submission": f"{name}/prepared/public/sample_submission.csv",
        },
        "grader": {"name": "mean-distance", "grade_fn": f"mlebench.competitions.{name}.grade:grade"},
    }
    (code / "config.yaml").write_text(yaml.safe_dump(config | changes), encoding="utf-8")
    (code / "grade.py").write_text(GRADER, encoding="utf-8")
    (code / "classes.py").write_text('COLUMN = "y"\n', encoding="utf-8")
    return root


@pytest.mark.sandbox
def test_an_episode_from_end_to_end(tmp_path):
    root = write_bench(tmp_path)
    env = gym.make("wmrl/MLEDojo-v0", competition="small-numbers", data_root=root, max_turns=1)
    task, _ = env.reset(seed=0)
    assert "mean-distance, lower is better" in task
    _, reward, _, _, info = env.step(PROGRAM)
    env.close()
    # off by 1 in one of three rows, with five decimals; two of four teams are better
    assert (info["status"], info["score"], reward) == ("ok", 0.33333, 0.5)


def test_a_folder_is_recognised(tmp_path):
    root = write_bench(tmp_path)
    competition = load_competition("small-numbers", root)
    assert (competition.metric.name, competition.metric.higher_is_better) == ("mean-distance", False)
    assert competition.description == "# Numbers\nPredict y."
    assert competition.leaderboard("public") == competition.leaderboard("private") == (0.1, 0.3, 0.5, 2.0)
    assert pickle.loads(pickle.dumps(competition)) == competition == load_competition(root / "small-numbers")
    assert competition_names(root) == ["small-numbers"]


def test_the_code_may_lie_in_a_tree_of_its_own(tmp_path):
    tree = tmp_path / "mle-bench"
    root = write_bench(tmp_path / "data", code=tree / "mlebench" / "competitions" / "small-numbers")
    competition = load_competition("small-numbers", root, tree)
    assert competition.leaderboard("private")[0] == 0.1
    with pytest.raises(
        CompetitionError, match=r"No config\.yaml for the MLE-bench competition 'small-numbers'"
    ):
        load_competition("small-numbers", root)


@pytest.mark.sandbox
def test_what_the_grader_does_not_take_has_its_status(tmp_path):
    competition = load_competition("small-numbers", write_bench(tmp_path))
    path = tmp_path / "s.csv"
    assert grade(competition, submission(path, [1, 2], [1, 2])).status == "bad_ids"
    assert grade(competition, submission(path, [1, 2, 3], IDS, "id,z")).status == "bad_columns"
    assert grade(competition, submission(path, [1, 2, "nan"], IDS)).status == "bad_values"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grader": {"name": "x"}}, r"config\.yaml lacks grader\.grade_fn"),
        ({"grader": "x"}, r"config\.yaml lacks grader\.name"),
        ({"dataset": {"answers": "a.csv"}}, r"config\.yaml lacks dataset\.sample_submission"),
    ],
)
def test_a_setting_that_lacks_has_its_sentence(tmp_path, changes, sentence):
    with pytest.raises(CompetitionError, match=sentence):
        load_competition("small-numbers", write_bench(tmp_path, **changes))


@pytest.mark.parametrize("file", ["prepared/private/test.csv", "leaderboard.csv"])
def test_a_missing_file_has_its_sentence(tmp_path, file):
    root = write_bench(tmp_path)
    (root / "small-numbers" / file).unlink()
    with pytest.raises(CompetitionError, match=r"'small-numbers' has no .*: expected at"):
        load_competition("small-numbers", root)


@pytest.mark.sandbox
def test_a_grader_that_is_not_there_is_nobodys_score(tmp_path):
    changes = {"grader": {"name": "x", "grade_fn": "nowhere.grading:grade"}}
    competition = load_competition("small-numbers", write_bench(tmp_path, **changes))
    with pytest.raises(CompetitionError, match=r"nowhere\.grading cannot be imported"):
        grade(competition, submission(tmp_path / "s.csv", [1, 2, 3], IDS))


@pytest.mark.parametrize(
    ("teams", "places"),
    [
        (1, (1, 1, 1)),
        (99, (9, 19, 39)),
        (100, (10, 20, 40)),
        (249, (10, 49, 99)),
        (250, (10, 50, 100)),
        (999, (11, 50, 100)),
        (1000, (12, 50, 100)),
        (4598, (19, 229, 459)),
    ],
)
def test_medals_by_the_number_of_teams(teams, places):
    thresholds = medal_thresholds([float(place) for place in range(1, teams + 1)])  # the score is the place
    assert tuple(thresholds[f"{medal}_threshold"] for medal in ("gold", "silver", "bronze")) == places
    assert thresholds["median_threshold"] == (teams + 1) / 2


def test_the_report(tmp_path):
    competition = load_competition("small-numbers", write_bench(tmp_path))
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert report(competition, Grade("ok", score=0.1, percentile=1.0), "s.csv", created_at=now) == {
        "competition_id": "small-numbers",
        "score": 0.1,
        "gold_threshold": 0.1,
        "silver_threshold": 0.1,
        "bronze_threshold": 0.1,
        "median_threshold": 0.4,
        "any_medal": True,
        "gold_medal": True,
        "silver_medal": False,
        "bronze_medal": False,
        "above_median": True,
        "submission_exists": True,
        "valid_submission": True,
        "is_lower_better": True,
        "created_at": "2026-01-02T00:00:00+00:00",
        "submission_path": "s.csv",
    }
    level = report(competition, Grade("ok", score=0.4, percentile=0.5), "s.csv")
    assert not level["above_median"]  # it must be better, not equal
    assert not level["any_medal"]
    for lost in (Grade("no_submission"), Grade("bad_ids"), None):
        empty = report(competition, lost, "s.csv")
        assert [empty[name] for name in ("valid_submission", "any_medal", "above_median")] == [False] * 3
        assert empty["submission_exists"] == (lost == Grade("bad_ids"))
        assert json.loads(json.dumps(empty)) == empty
