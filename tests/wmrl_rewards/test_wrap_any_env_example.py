import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "wrap_any_env.py"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_the_example_learns_on_a_few_bought_returns():
    output = run("--iterations", "12")
    before, after = map(float, re.search(r"true score: (\S+) before, (\S+) after", output).groups())
    assert after > before + 0.2
    # 40 beforehand, then one group of eight in each iteration, of eighty episodes
    assert "returns bought: 136 instead of 1000 (14%)" in output
    assert "corrected yes" in output


def test_the_example_buys_everything_when_told_to():
    output = run("--iterations", "1", "--groups", "2", "--group-size", "3", "--anchor-fraction", "1.0")
    assert "returns bought: 46 instead of 46 (100%)" in output
