import pytest

from tests.wmrl_envs.folders import write_folder
from wmrl_agents.cli import main
from wmrl_envs.autoresearch.competition import bundled_names, load_competition
from wmrl_envs.autoresearch.prompts import task_text


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "small", board=(0.25, 0.5, 1.0))


def test_list_names_every_competition(capsys, folder):
    assert main(["tasks", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == bundled_names()
    assert main(["tasks", "list", "--data-root", str(folder.parent)]) == 0
    assert capsys.readouterr().out.split() == ["small", "tabular", "train", "rmse", "Small"]


def test_show_prints_what_an_agent_sees(capsys, folder):
    assert main(["tasks", "show", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(task_text(load_competition(folder)))
    assert "The public half: 3 rows, 3 scores from 0.25 to 1\n" in printed


def test_check_prints_a_line_for_each_finding_and_fails_on_errors(capsys, folder):
    assert main(["tasks", "check", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: nothing was found.\n"
    (folder / "public/notes.txt").write_bytes(b"\xff")
    assert main(["tasks", "check", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("warning: public/notes.txt is not UTF-8")
    (folder / "private/public_leaderboard.csv").write_text("rank,score\n1,2\n2,1\n")
    assert main(["tasks", "check", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "warning"]


def test_import_copies_a_sound_folder(capsys, folder, tmp_path):
    out = tmp_path / "root"
    assert main(["tasks", "import", str(folder), "--out", str(out)]) == 0
    assert load_competition("small", out).title == "Small"
    assert [path.name for path in out.iterdir()] == ["small"]
    assert main(["tasks", "import", str(folder), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_import_leaves_an_unsound_folder_alone(folder, tmp_path):
    (folder / "private/public_leaderboard.csv").write_text("rank,score\n1,1\n2,1\n")
    assert main(["tasks", "import", str(folder), "--out", str(tmp_path / "root")]) == 1
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["check", "nowhere"], "nowhere is not a folder."), (["show", "digit"], "Did you mean 'digits'?")],
)
def test_what_is_not_there(capsys, arguments, expected):
    assert main(["tasks", *arguments]) == 2
    assert expected in capsys.readouterr().err
