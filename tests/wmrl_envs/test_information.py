import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.competition import load_competition
from wmrl_envs.autoresearch.episode import Episode
from wmrl_envs.autoresearch.information import INFORMATION, information
from wmrl_envs.autoresearch.prompts import task_text

from .folders import write_folder

DIGITS = load_competition("digits")


def test_each_kind_of_information(tmp_path):
    competition = load_competition(write_folder(tmp_path / "small"))
    assert information(competition) == information(competition, "overview") == task_text(competition)
    assert information(competition, "name") == "The competition is called small."
    assert information(competition, "sample_submission") == (
        "The first lines of sample_submission.csv:\nid,y\n11,1\n12,1\n13,1\n14,1\n15,1"
    )
    assert information(competition, "metadata") == (
        "title: Small\ncategory: tabular\nmetric: rmse, lower is better\nid column: id\ntarget columns: y"
    )
    assert information(competition, "data_structure").splitlines() == [
        "Files in DATA_DIR:",
        "- description.md (18 bytes)",
        "- sample_submission.csv (35 bytes): id, y",
        "- test.csv (53 bytes): id, x",
        "- train.csv (55 bytes): id, x, y",
    ]


def test_an_unknown_name_is_answered_with_those_that_are_known():
    answer = information(DIGITS, "answers")
    assert answer.startswith("status: request_info\nmessage: There is no information called 'answers'")
    assert answer.endswith("overview, sample_submission, data_structure, name, metadata.")


@pytest.mark.parametrize("wanted", INFORMATION)
def test_answers_are_short_whatever_the_files_are(tmp_path, wanted):
    root = write_folder(tmp_path / "small")
    wide = pd.DataFrame(np.zeros((1, 5000)), columns=[f"column{i}" for i in range(5000)])
    wide.to_csv(root / "public/wide.csv", index=False)
    (root / "public/images").mkdir()
    for number in range(200):
        (root / "public/images" / f"{number}.png").write_bytes(b"")
    (root / "public/broken.csv").write_bytes(b"\xff\xfe" * 1000)
    sample = root / "public/sample_submission.csv"
    competition = load_competition(root)
    sample.write_text("id,y\n" + "9" * 10**6)
    assert len(information(competition, wanted)) < 6000


@pytest.mark.parametrize("wanted", INFORMATION)
def test_nothing_private_is_told(tmp_path, wanted):
    root = write_folder(
        tmp_path / "small", board=(1.0, 2.0, 4.0), answers=(911, 922, 933, 944, 955, 966), labels=[1]
    )
    answer = information(load_competition(root), wanted)
    assert not any(secret in answer for secret in ("911", "966", "private", "leaderboard"))


def test_it_is_an_action_of_the_episode():
    episode = Episode(DIGITS)
    assert episode.reply("request_info(name)") is None
    assert episode.observation == "The competition is called digits."
    episode.reply("```request_info\nsample_submission\n```")
    assert episode.observation.startswith("The first lines of sample_submission.csv:\nid,digit\n")
    assert [turn.status for turn in episode.turns] == ["request_info", "request_info"]
    assert not episode.done


@given(st.text(max_size=80))
def test_any_name_is_answered(wanted):
    assert information(DIGITS, wanted)
