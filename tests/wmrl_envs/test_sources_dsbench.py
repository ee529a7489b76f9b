import math
import pickle

import gymnasium as gym
import pandas as pd
import pytest

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.autoresearch.competition import competition_names, load_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.autoresearch.sources.dsbench_tasks import choose, find_task, tasks
from wmrl_envs.errors import CompetitionError, ConfigError

from .folders import submission

IDS = [7, 5, 8, 6]
HOUSES = "playground-series-s3e1"
PROGRAM = """```python
import os
import pandas as pd
table = pd.read_csv(os.environ["DATA_DIR"] + "/sample_submission.csv")
table["y"] = [12, 22, 32, 42]
table.sort_values("id").to_csv(os.environ["SUBMISSION_PATH"], index=False)
```"""
SCRIPT = """
import argparse, os
import pandas as pd
parser = argparse.ArgumentParser()
for name in ("path", "name", "answer_file", "predict_file"):
    parser.add_argument("--" + name, type=str, required=True)
parser.add_argument("--value", type=str, default="y")
args = parser.parse_args()
actual, predicted = pd.read_csv(args.answer_file), pd.read_csv(args.predict_file)
score = (actual[args.value] - predicted[args.value]).abs().median()
with open(os.path.join(args.path, args.name, "result.txt"), "w") as f:
    f.write(str(score))
"""


def write_task(
    root, name=HOUSES, *, answers=(10, 20, 30, 40), sample=25, labels=(15, 35), file="sample_submission"
):
    """Write a task in the layout of DSBench's release; returns the folder that holds ``data``."""
    public, private, words = (
        root / "data" / part for part in (f"data_resplit/{name}", f"answers/{name}", "task")
    )
    for folder in (public, private, words):
        folder.mkdir(parents=True, exist_ok=True)
    (words / f"{name}.txt").write_text("Predict y.\n", encoding="utf-8")
    pd.DataFrame({"id": range(len(labels)), "x": 1, "y": labels}).to_csv(public / "train.csv", index=False)
    pd.DataFrame({"id": IDS, "x": 1}).to_csv(public / "test.csv", index=False)
    pd.DataFrame({"id": IDS, "y": sample}).to_csv(public / f"{file}.csv", index=False)
    pd.DataFrame({"id": IDS, "x": 1, "y": answers}).to_csv(private / "test_answer.csv", index=False)
    return root


def write_script(root, name, text=SCRIPT):
    (root / "evaluation").mkdir(exist_ok=True)
    (root / "evaluation" / f"{name}_eval.py").write_text(text, encoding="utf-8")


@pytest.mark.sandbox
def test_an_episode_from_end_to_end(tmp_path):
    env = gym.make("wmrl/DSBench-v0", competition=HOUSES, data_root=write_task(tmp_path), max_turns=1)
    task, _ = env.reset(seed=0)
    assert "Predict y." in task
    observation, reward, _, _, info = env.step(PROGRAM)
    env.close()
    # All are off by 2. The sample is off by 15, 5, 5 and 15, the mean of whose squares is 125.
    assert (info["status"], info["score"]) == ("ok", 2.0)
    assert reward == pytest.approx(1 - 2 / math.sqrt(125))
    assert f"rpg: {reward:.2f}" in observation


def test_the_environment_needs_a_data_root():
    with pytest.raises(ConfigError, match="needs data_root="):
        gym.make("wmrl/DSBench-v0", competition=HOUSES)


@pytest.mark.parametrize("part", ["", "data", "data/data_resplit"])
def test_the_layout_is_recognised_from_each_of_its_folders(tmp_path, part):
    root = write_task(tmp_path) / part
    competition = load_competition(HOUSES, root)
    assert (competition.metric.name, competition.target_columns) == ("rmse", ("y",))
    assert competition.score_kind == "rpg"
    assert pickle.loads(pickle.dumps(competition)) == competition
    assert competition_names(root) == [HOUSES]


def test_labels_are_matched_by_id_whatever_the_order(tmp_path):
    root = write_task(
        tmp_path, "titanic", answers=(0, 1, 1, 0), sample=0, labels=(0, 1), file="gender_submission"
    )
    titanic = load_competition("titanic", root)
    path = submission(
        tmp_path / "s.csv", [1, 0, 1, 1], sorted(IDS), "id,y"
    )  # right for 5, 6 and 8, not for 7
    result = grade(titanic, path)
    assert (result.score, result.percentile) == (0.75, 0.5)  # baseline 0.5, best 1
    assert grade(titanic, submission(tmp_path / "s.csv", [1, 1, 1, 1], IDS, "id,y")).percentile == 0.0
    assert grade(titanic, submission(tmp_path / "s.csv", [1, 0, 0, 0], IDS, "id,y")).percentile == 0.0


def test_a_users_board_makes_it_a_percentile(tmp_path):
    root = write_task(tmp_path)
    board = root / "data" / "answers" / HOUSES / "leaderboard.csv"
    board.write_text("rank,score\n1,1.0\n2,2.0\n3,2.5\n4,9.0\n", encoding="utf-8")
    competition = load_competition(HOUSES, root)
    assert competition.score_kind == "percentile"
    assert competition.rank(2.0, "public") == 0.75
    assert competition.rpg(2.0) == pytest.approx(1 - 2 / math.sqrt(125))


def test_published_results_give_baseline_and_best(tmp_path):
    root = write_task(tmp_path)
    for kind, text in (("baseline", "10.0"), ("GT", "2.0\n")):
        folder = root / "save_performance" / kind / HOUSES
        folder.mkdir(parents=True)
        (folder / "result.txt").write_text(text, encoding="utf-8")
    competition = load_competition(HOUSES, root)
    assert [competition.rank(score, "public") for score in (11.0, 6.0, 1.0)] == [0.0, 0.5, 1.0]
    (folder / "result.txt").write_text("__import__('os').getpid()", encoding="utf-8")
    with pytest.raises(CompetitionError, match=r"result\.txt must hold a number"):
        load_competition(HOUSES, write_task(tmp_path, sample=24)).rank(1.0, "public")


@pytest.mark.sandbox
def test_a_task_without_a_known_metric_runs_its_script_on_ordered_rows(tmp_path):
    name = "playground-series-s3e25"  # median absolute error
    root = write_task(tmp_path, name)
    with pytest.raises(CompetitionError, match=f"put DSBench's folder evaluation, with {name}_eval.py"):
        load_competition(name, root)
    write_script(root, name)
    competition = load_competition(name, root)
    path = submission(tmp_path / "s.csv", [21, 43, 10, 30], sorted(IDS), "id,y")  # off by 1, 3, 0 and 0
    result = grade(competition, path)
    assert (result.status, result.score) == ("ok", 0.5)
    assert result.percentile == pytest.approx(1 - 0.5 / 10)  # the sample is off by 15, 5, 5 and 15
    submission(path, [1, 2, 3], [7, 5, 8], "id,y")
    assert grade(competition, path).status == "bad_ids"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (f"task/{HOUSES}.txt", "description"),
        (f"data_resplit/{HOUSES}/sample_submission.csv", "sample submission"),
        (f"data_resplit/{HOUSES}/train.csv", "training table"),
        (f"answers/{HOUSES}/test_answer.csv", "answers"),
    ],
)
def test_a_missing_file_has_its_sentence(tmp_path, path, what):
    root = write_task(tmp_path)
    (root / "data" / path).unlink()
    with pytest.raises(CompetitionError, match=f"has no {what}: expected at"):
        load_competition(HOUSES, root)


@pytest.mark.parametrize(
    ("answers", "sample", "sentence"),
    [
        (("a", 1, 2, 3), 25, "no finite numbers"),
        (("", 1, 2, 3), 25, "no finite numbers"),
        ((5, 5, 5, 5), 5, "there is no gap"),
    ],
)
def test_answers_that_cannot_be_scored_have_their_sentence(tmp_path, answers, sample, sentence):
    root = write_task(tmp_path, answers=answers, sample=sample)
    with pytest.raises(CompetitionError, match=sentence):
        load_competition(HOUSES, root).rank(1.0, "public")


def test_the_list_and_its_kinds():
    released = [task for task in tasks() if task.released]
    assert len(released) == 74
    assert find_task("titanic").registered_metric == "accuracy"
    assert find_task("titanic").kind == "multiclass"
    assert not find_task(HOUSES).higher_is_better
    assert find_task("unheard-of") is None


def test_the_rule_says_what_it_drops_and_why(tmp_path):
    root = write_task(tmp_path)
    write_task(tmp_path, "titanic", answers=(0, 1, 1, 0))
    write_task(tmp_path, "bike-sharing-demand", file="guesses")
    wide = root / "data" / "data_resplit" / "titanic" / "train.csv"
    wide.write_text(",".join(f"c{i}" for i in range(11)) + "\n", encoding="utf-8")
    large = write_task(tmp_path, "nlp-getting-started") / "data" / "data_resplit" / "nlp-getting-started"
    (large / "train.csv").write_text("x\n" * 5000, encoding="utf-8")
    choice = choose(root, max_bytes=5000, max_columns=10)
    assert choice.kept == (HOUSES,)
    assert choice.kinds == {"regression": 1}
    assert {name: reason.split(":")[0] for name, reason in choice.dropped.items()} == {
        "bike-sharing-demand": "no sample submission",
        "nlp-getting-started": "too large",
        "titanic": "too many columns",
    }
    with pytest.raises(CompetitionError, match="not in DSBench's layout"):
        choose(tmp_path / "elsewhere")
