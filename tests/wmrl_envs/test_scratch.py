"""Temporary files: gone with their owner, however it ended, and never taken from one that lives."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wmrl_envs.sandbox import Job, UnsafeSandbox, scratch
from wmrl_envs.sandbox.scratch import new_file, remove_leftovers, scratch_folder

ROOT = Path(__file__).parents[2]
OWNER = """
import sys
from wmrl_envs.sandbox.scratch import new_file, scratch_folder
with new_file("submission-") as (file, path):
    file.write(b"x")
print(scratch_folder(), flush=True)
input()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    scratch._scratch_folder.cache_clear()


def test_an_owner_keeps_its_folder_until_it_is_killed(temporary):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    with process:
        folder = Path(process.stdout.readline().strip())
        remove_leftovers()
        assert [path.name.partition("-")[0] for path in folder.iterdir()] == ["submission"]
        process.send_signal(signal.SIGKILL)
    assert folder.exists()
    remove_leftovers()
    assert list(temporary.iterdir()) == []


def test_a_folder_whose_owner_was_killed_before_it_could_lock_it_is_removed(temporary):
    (temporary / "wmrl-scratch-x").mkdir(mode=0o700)
    (temporary / "wmrl-scratch-y").mkdir(mode=0o700)
    (temporary / "wmrl-scratch-y/new").touch()
    (temporary / "another").mkdir()
    remove_leftovers()
    assert [path.name for path in temporary.iterdir()] == ["another"]


def test_a_folder_that_is_taken_away_at_birth_is_made_again(temporary, monkeypatch):
    made = tempfile.mkdtemp

    def robbed(**arguments):
        """What another process may do between making and locking."""
        monkeypatch.setattr(tempfile, "mkdtemp", made)
        folder = made(**arguments)
        remove_leftovers()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", robbed)
    folder = scratch_folder()
    assert list(temporary.iterdir()) == [folder]
    remove_leftovers()
    assert folder.exists()


def test_a_link_under_such_a_name_is_left_alone(temporary):
    (temporary / "precious").mkdir()
    (temporary / "precious/file").touch()
    (temporary / "wmrl-scratch-link").symlink_to("precious")
    remove_leftovers()
    assert (temporary / "precious/file").exists()


def test_a_file_that_cannot_be_written_whole_is_not_left_behind(temporary):
    def write():
        with new_file("submission-") as (file, _):
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write()
    assert list(scratch_folder().iterdir()) == []


WRITES = "import os\nopen(os.environ['SUBMISSION_PATH'], 'w').write('id,y\\n')\n"


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "competition/public"
    folder.mkdir(parents=True)
    return folder


def test_a_folder_that_a_cleaner_removed_is_made_again(temporary, data_dir):
    sandbox = UnsafeSandbox()
    shutil.rmtree(scratch_folder())
    result = sandbox.run(Job(WRITES, data_dir))
    assert (result.status, result.submission_error) == ("ok", None)
    assert result.submission_path.read_text() == "id,y\n"


def test_no_place_for_the_copy_is_not_a_missing_submission(monkeypatch, data_dir):
    sandbox = UnsafeSandbox()

    def gone(prefix):
        raise FileNotFoundError(f"no folder for {prefix}")

    monkeypatch.setattr("wmrl_envs.sandbox.submission.new_file", gone)
    result = sandbox.run(Job(WRITES, data_dir))
    assert (result.status, result.submission_error) == ("infrastructure", None)
    assert "could not be copied" in result.message
