"""`wmrl tasks check` on folders in other people's layouts: sound ones, and a sentence for each corruption."""

import re
import shutil

import numpy as np
import pandas as pd
import pytest

from wmrl_agents.cli import main
from wmrl_envs.autoresearch.inspection import inspect_folder

from .test_competition import edit, put
from .test_sources_dsbench import HOUSES, write_task
from .test_sources_mle_bench import write_bench
from .test_sources_mle_dojo import write_dojo

pytestmark = pytest.mark.sandbox

IDS = list(range(101, 141))
PUBLIC, PRIVATE = "data/public", "data/private"
LACKS = r"error: \. is no competition\. The MLE-Dojo competition 'small-houses' has no"


def dojo(root):
    """A folder of MLE-Dojo with 40 test rows, where nothing is chance; its code tree."""
    data_root, code = write_dojo(root)
    folder = data_root / "small-houses"
    rng = np.random.default_rng(3)
    tables = {
        "public/train.csv": {"id": [8, 9], "x": [0.5, 0.25], "price": [15, 25]},
        "public/test.csv": {"id": IDS, "x": rng.random(len(IDS))},
        "public/sample_submission.csv": {"id": IDS, "price": 0},
        "private/test_answer.csv": {"id": IDS, "price": rng.permutation(len(IDS))},
        "private/public_leaderboard.csv": {"rank": [1, 2], "score": [1.5, 3.0]},
    }
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(folder / "data" / name, index=False)
    return folder, code


def found(folder, code=None):
    return [f"{finding.severity}: {finding}" for finding in inspect_folder(folder, code)]


def test_nothing_is_found_in_sound_folders(tmp_path):
    assert found(*dojo(tmp_path / "dojo")) == []
    assert found(write_bench(tmp_path / "bench") / "small-numbers") == []
    assert found(write_task(tmp_path / "ds") / "data/data_resplit" / HOUSES) == []


def copy_answers(folder, name, column):
    answers = pd.read_csv(folder / "data/private/test_answer.csv")
    (folder / "data/public" / name).parent.mkdir(exist_ok=True)
    edit(folder / "data/public" / name, lambda t: t.assign(**{column: answers["price"] * 2 + 1}))


def all_equal(folder):
    edit(folder / "data/private/public_leaderboard.csv", lambda t: t.assign(score=1.5))


CORRUPTIONS = {
    "sample lacks an id": (
        lambda f: edit(f / "data/public/sample_submission.csv", lambda t: t.iloc[1:]),
        ["error: data/public/sample_submission.csv lacks the id '101' of the answers."],
    ),
    "test lacks an id": (
        lambda f: edit(f / "data/public/test.csv", lambda t: t.iloc[:-1]),
        ["error: data/public/test.csv lacks the id '140', for which an answer is asked."],
    ),
    "sample with another column": (
        lambda f: edit(
            f / "data/public/sample_submission.csv", lambda t: t.rename(columns={"price": "cost"})
        ),
        [r"warning: data/private/test_answer.csv lacks cost, which the sample submission has."],
    ),
    "an answer is missing": (
        lambda f: edit(f / "data/private/test_answer.csv", put("price", 2, "")),
        ["error: data/private/test_answer.csv has no value of price for the id '103'."],
    ),
    "equal boards": (
        all_equal,
        [f"error: {PRIVATE}/public_leaderboard.csv has no score but 1.5, so that percentiles tell nothing."],
    ),
    "boards without numbers": (
        lambda f: edit(f / "data/private/public_leaderboard.csv", put("score", 1, "inf")),
        ["warning: data/private/public_leaderboard.csv has 1 entries without a finite score."],
    ),
    "a column tells the answers": (
        lambda f: copy_answers(f, "test.csv", "code"),
        [f"error: {PUBLIC}/test.csv gives the answers away: the column 'code' tells price of the test rows."],
    ),
    "a side table without the test rows": (
        lambda f: pd.DataFrame({"id": [8, 9], "rooms": [3, 4]}).to_csv(
            f / "data/public/rooms.csv", index=False
        ),
        [
            f"error: {PUBLIC}/rooms.csv has the ids of all training rows, but lacks 40 of the 40 "
            "test rows, first '101'."
        ],
    ),
    "another encoding": (
        lambda f: (f / "data/public/notes.txt").write_bytes("größe".encode("latin-1")),
        ["warning: data/public/notes.txt is not UTF-8: line 1 holds other bytes. Save it as UTF-8."],
    ),
    "no description": (
        lambda f: (f / "data/public/description.txt").unlink(),
        [f"{LACKS} description: expected at .*"],
    ),
    "no answers": (
        lambda f: (f / "data/private/test_answer.csv").unlink(),
        [f"{LACKS} answers: expected at .*"],
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corruption_has_its_sentence(tmp_path, name):
    corrupt, expected = CORRUPTIONS[name]
    folder, code = dojo(tmp_path)
    corrupt(folder)
    sentences = found(folder, code)
    for sentence in expected:
        assert any(re.fullmatch(sentence, line) for line in sentences), sentences


def test_labels_that_were_never_seen(tmp_path):
    folder = write_bench(tmp_path) / "small-numbers"
    edit(folder / "prepared/public/train.csv", lambda t: t.assign(y=["cat", "dog"]))
    edit(folder / "prepared/private/test.csv", lambda t: t.assign(y=["cat", "dog", "horse"]))
    sentence = "warning: prepared/private/test.csv has y = 'horse', which no training row has."
    assert sentence in found(folder)


def test_a_grader_that_is_out_of_order(tmp_path):
    folder = write_bench(tmp_path) / "small-numbers"
    (folder / "grade.py").write_text("import nowhere\n")
    assert [line for line in found(folder) if "is out of order" in line]


def test_the_command(tmp_path, capsys):
    folder, code = dojo(tmp_path)
    assert main(["tasks", "check", str(folder), "--dojo-root", str(code)]) == 0
    assert capsys.readouterr().out == f"{folder}: nothing was found.\n"
    assert main(["tasks", "check", str(folder)]) == 1
    assert "give its code tree as dojo_root" in capsys.readouterr().out
    assert main(["tasks", "import", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "are read where they lie" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["tasks", "show", str(folder), "--dojo-root", str(code)]) == 0
    assert "scores from 1.5 to 3" in capsys.readouterr().out
    assert main(["tasks", "list", "--data-root", str(folder.parent), "--dojo-root", str(code)]) == 0
    assert capsys.readouterr().out.split()[:2] == ["small-houses", "tabular"]
    assert main(["tasks", "list", "--data-root", str(folder.parent)]) == 0
    assert "No metric for the MLE-Dojo competition 'small-houses'" in capsys.readouterr().out


def test_a_task_of_dsbench_is_shown_without_a_board(tmp_path, capsys):
    folder = write_task(tmp_path) / "data/data_resplit" / HOUSES
    assert main(["tasks", "show", str(folder)]) == 0
    assert "There is no leaderboard" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "data/answers")
    assert main(["tasks", "check", str(folder)]) == 1
    assert "has no answers" in capsys.readouterr().out
