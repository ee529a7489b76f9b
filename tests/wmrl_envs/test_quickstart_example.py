import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def run(*flags):
    return subprocess.run([sys.executable, QUICKSTART, *flags], capture_output=True, text=True, check=False)


@pytest.mark.sandbox
def test_it_plays_an_episode_with_real_execution():
    done = run("--half", "private")
    assert (done.returncode, done.stderr) == (0, "")
    task, failure, weak, better = done.stdout.split("\n----- ")
    assert task.startswith("# Breast cancer diagnosis (tabular)")
    assert "status: error" in failure
    assert "NameError: name 'LogisticRegression' is not defined" in failure
    scores = [float(text.partition("roc_auc: ")[2].split()[0]) for text in (weak, better)]
    assert 0.5 < scores[0] < scores[1] <= 1.0
    reward = float(better.rpartition(": ")[2])
    assert 0.0 < reward <= 1.0
    assert f"percentile: {reward:.2f}" in better


def test_bad_input_is_one_sentence():
    done = run("--competition", "brest-cancer")
    assert done.returncode == 2
    assert done.stderr == "quickstart.py: Unknown competition 'brest-cancer'. Did you mean 'breast-cancer'?\n"
