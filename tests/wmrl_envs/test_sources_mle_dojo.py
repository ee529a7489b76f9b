import pickle

import gymnasium as gym
import pandas as pd
import pytest

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.autoresearch.competition import competition_names, load_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.errors import CompetitionError
from wmrl_envs.evaluation import Solution
from wmrl_envs.sandbox.cache import ExecutionCache

from .folders import submission

METRIC = """
import numpy as np
import pandas as pd
from mledojo.metrics.base import CompetitionMetrics, InvalidSubmissionError


class SmallHousesMetrics(CompetitionMetrics):
    def __init__(self, value="price", higher_is_better=False):
        super().__init__(higher_is_better)
        self.value = value

    def evaluate(self, y_true, y_pred):
        y_true, y_pred = (table.sort_values("id").reset_index(drop=True) for table in (y_true, y_pred))
        return float(np.sqrt(np.mean((y_true[self.value] - y_pred[self.value]) ** 2)))

    def validate_submission(self, submission, ground_truth):
        if len(submission) != len(ground_truth):
            raise InvalidSubmissionError("Number of rows does not match.")
        if set(submission.columns) != set(ground_truth.columns):
            raise InvalidSubmissionError("The columns do not match.")
        if sorted(submission["id"]) != sorted(ground_truth["id"]):
            raise InvalidSubmissionError("The ids do not match.")
        return "Submission is valid."
"""
IDS = [1, 2, 3, 4]
HEADER = "id,price"
CODE = """
import os
import pandas as pd
data = os.environ["DATA_DIR"]
table = pd.read_csv(data + "/sample_submission.csv")
table["price"] = [10, 20, 30, 44]
table.iloc[::-1].to_csv(os.environ["SUBMISSION_PATH"], index=False)
print(os.path.exists(data + "/../private"))
"""


def write_dojo(root, slug="small-houses", *, public=(1.0, 2.0, 2.0, 5.0), private=(1.5, 3.0), metric=METRIC):
    """Write a prepared data root and a code tree in MLE-Dojo's layout; returns both."""
    data, code = root / "prepared" / slug / "data", root / "code" / "mledojo" / "competitions" / slug
    for folder in (data / "public", data / "private", code / "info", code / "utils"):
        folder.mkdir(parents=True)
    (data / "public" / "description.txt").write_text("Predict the price of a house.\n", encoding="utf-8")
    pd.DataFrame({"id": [8, 9], "x": [1, 2], "price": [15, 25]}).to_csv(
        data / "public" / "train.csv", index=False
    )
    pd.DataFrame({"id": IDS, "x": [1, 2, 3, 4]}).to_csv(data / "public" / "test.csv", index=False)
    pd.DataFrame({"id": IDS, "price": 0}).to_csv(data / "public" / "sample_submission.csv", index=False)
    pd.DataFrame({"id": IDS, "price": [10, 20, 30, 40]}).to_csv(
        data / "private" / "test_answer.csv", index=False
    )
    for half, board in (("public", public), ("private", private)):
        table = pd.DataFrame({"rank": range(1, len(board) + 1), "score": board})
        table.to_csv(data / "private" / f"{half}_leaderboard.csv", index=False)
    (code / "utils" / "metric.py").write_text(metric, encoding="utf-8")
    return root / "prepared", root / "code"


@pytest.fixture
def houses(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path)
    return load_competition("small-houses", data_root, dojo_root)


def test_a_folder_is_recognised(houses):
    assert (houses.name, houses.category, houses.split) == ("small-houses", "tabular", "train")
    assert (houses.id_column, houses.target_columns) == ("id", ("price",))
    assert houses.description == "Predict the price of a house."
    assert not houses.metric.higher_is_better  # the boards begin with the smallest error
    assert houses.leaderboard("public") == (1.0, 2.0, 2.0, 5.0)
    assert houses.leaderboard("private") == (1.5, 3.0)
    assert houses.score_kind == "percentile"
    assert (
        houses.answers("private")["price"].tolist() == houses.answers()["price"].tolist() == [10, 20, 30, 40]
    )
    assert pickle.loads(pickle.dumps(houses)) == houses
    assert competition_names(houses.layout.data_root) == ["small-houses"]


def test_position_score_is_the_mean_over_both_boards(houses):
    # public: 1.0 is better than 2.0, so (4 - 2 + 1) / 4; private: 1.5 is better, so (2 - 2 + 1) / 2
    assert houses.rank(2.0, "public") == houses.rank(2.0, "private") == (3 / 4 + 1 / 2) / 2
    assert houses.rank(0.5, "public") == 1.0
    assert houses.rank(6.0, "private") == 0.0


@pytest.mark.sandbox
def test_an_episode_from_end_to_end(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path)
    env = gym.make(
        "wmrl/MLEDojo-v0", competition="small-houses", data_root=data_root, dojo_root=dojo_root, max_turns=1
    )
    task, _ = env.reset(seed=0)
    assert "Predict the price of a house." in task
    assert "lower is better" in task
    observation, reward, terminated, _, info = env.step(f"```python{CODE}```")
    env.close()
    # squared errors 0, 0, 0 and 16 give 2.0, whatever the order of the rows
    assert (info["status"], info["score"], terminated) == ("ok", 2.0, True)
    assert reward == info["percentile"] == 0.625
    assert observation.endswith("stdout:\nFalse")


@pytest.mark.sandbox
def test_each_fault_of_a_submission_has_its_status(houses, tmp_path):
    def status(text):
        (tmp_path / "s.csv").write_text(text, encoding="utf-8")
        result = grade(houses, tmp_path / "s.csv")
        assert result.score is None
        assert result.message.endswith(".")
        return result.status

    assert grade(houses, None).status == "no_submission"
    assert status("") == "unreadable"
    assert status("id,wrong\n1,1\n2,2\n3,3\n4,4\n") == "bad_columns"
    assert status("id,price\n1,1\n2,2\n3,3\n") == "bad_ids"
    assert status("id,price\n1,1\n2,2\n3,3\n3,4\n") == "bad_ids"
    assert status("id,price\n1,1\n2,2\n3,3\n4,x\n") == "metric_error"


@pytest.mark.parametrize("value", ["nan", "", "-inf"])
def test_what_is_no_number_never_ranks(houses, tmp_path, value):
    result = grade(houses, submission(tmp_path / "s.csv", [1, 2, 3, value], IDS, HEADER))
    assert (result.status, result.percentile) == ("bad_values", None)
    assert result.message.startswith("price must be a finite number; row 4 has ")


@pytest.mark.sandbox
def test_a_grader_sees_answers_but_no_network_and_no_other_file(tmp_path):
    spy = METRIC.replace(
        "        return float(",
        """        import os, socket
        seen = os.path.exists(r"%s") or len(socket.if_nameindex()) > 1
        return 100.0 if seen else float("""
        % (tmp_path / "prepared"),
    )
    assert spy != METRIC
    data_root, dojo_root = write_dojo(tmp_path, metric=spy)
    houses = load_competition("small-houses", data_root, dojo_root)
    assert grade(houses, submission(tmp_path / "s.csv", [10, 20, 30, 40], IDS, HEADER)).score == 0.0


@pytest.mark.sandbox
def test_boards_and_metric_must_agree_on_the_direction(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path, public=(5.0, 2.0), private=(3.0, 1.0))
    houses = load_competition("small-houses", data_root, dojo_root)
    path = submission(tmp_path / "s.csv", [10, 20, 30, 40], IDS, HEADER)
    with pytest.raises(CompetitionError, match=r"sorted as if higher is better, but .* lower is better"):
        grade(houses, path)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ("import nowhere_to_be_found", "cannot be imported: ModuleNotFoundError"),
        ("x = 1", "no class derived from CompetitionMetrics"),
        ("", "no class derived from CompetitionMetrics"),
    ],
)
def test_a_grader_that_is_out_of_order_is_nobodys_score(tmp_path, metric, sentence):
    data_root, dojo_root = write_dojo(tmp_path, metric=metric)
    houses = load_competition("small-houses", data_root, dojo_root)
    with pytest.raises(CompetitionError, match=sentence):
        grade(houses, submission(tmp_path / "s.csv", [10, 20, 30, 40], IDS, HEADER))


@pytest.mark.sandbox
def test_the_evaluator_says_why_there_is_no_score(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path, metric="import nowhere_to_be_found")
    houses = load_competition("small-houses", data_root, dojo_root)
    with SandboxEvaluator() as evaluator:
        [evaluation] = evaluator.evaluate([Solution(houses, CODE)])
    assert (evaluation.status, evaluation.score) == ("infrastructure", None)
    assert "The grader of small-houses is out of order" in evaluation.error


@pytest.mark.sandbox
def test_a_cached_grade_is_forgotten_when_the_metric_changes(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path)
    cache = ExecutionCache(tmp_path / "cache.sqlite")

    def evaluate():
        houses = load_competition("small-houses", data_root, dojo_root)
        with SandboxEvaluator(cache=cache) as evaluator:
            [evaluation] = evaluator.evaluate([Solution(houses, CODE)])
        return evaluation.outcome.cached, evaluation.grade.score

    assert evaluate() == (False, 2.0)
    assert evaluate() == (True, 2.0)
    metric = dojo_root / "mledojo" / "competitions" / "small-houses" / "utils" / "metric.py"
    metric.write_text(METRIC.replace("float(np.sqrt(", "float(2 * np.sqrt("), encoding="utf-8")
    assert evaluate() == (True, 4.0)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("prepared/small-houses/data/public/description.txt", "description"),
        ("prepared/small-houses/data/public/sample_submission.csv", "sample submission"),
        ("prepared/small-houses/data/private/test_answer.csv", "answers"),
        ("prepared/small-houses/data/private/private_leaderboard.csv", "private leaderboard"),
        ("code/mledojo/competitions/small-houses/utils/metric.py", "metric"),
    ],
)
def test_a_missing_file_has_its_sentence(tmp_path, path, what):
    data_root, dojo_root = write_dojo(tmp_path)
    (tmp_path / path).unlink()
    with pytest.raises(CompetitionError, match=f"'small-houses' has no {what}: expected at"):
        load_competition("small-houses", data_root, dojo_root)


def test_without_a_code_tree_the_sentence_says_what_to_do(tmp_path):
    data_root, _ = write_dojo(tmp_path)
    with pytest.raises(CompetitionError, match="install the package mledojo, or give its code tree"):
        load_competition("small-houses", data_root)


@pytest.mark.parametrize("name", ["unheard-of", "x" * 300, ""])
def test_an_unknown_name_is_told_what_there_is(tmp_path, name):
    data_root, dojo_root = write_dojo(tmp_path)
    with pytest.raises(CompetitionError, match=r"Choose one of small-houses\."):
        load_competition(name, data_root, dojo_root)


def test_boards_of_the_code_tree_stand_in(tmp_path):
    data_root, dojo_root = write_dojo(tmp_path)
    info = dojo_root / "mledojo" / "competitions" / "small-houses" / "info"
    for half in ("public", "private"):
        path = data_root / "small-houses" / "data" / "private" / f"{half}_leaderboard.csv"
        path.rename(info / path.name)
    assert load_competition("small-houses", data_root, dojo_root).leaderboard("private") == (1.5, 3.0)
