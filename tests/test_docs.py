"""What the documentation shows works, and what it names exists."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attacks import ATTACKS

ROOT = Path(__file__).parents[1]
CODE = {"wmrl_envs": ROOT, "wmrl_rewards": ROOT, "wmrl_agents": ROOT / "agents"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


EXAMPLE_TO_RUN = re.compile(r"^ *>>> (?!.*doctest: \+SKIP)", re.MULTILINE)


def modules_with_examples():
    for package, folder in CODE.items():
        for path in sorted((folder / package).rglob("*.py")):
            if EXAMPLE_TO_RUN.search(path.read_text(encoding="utf-8")):
                parts = path.relative_to(folder).with_suffix("").parts
                yield ".".join(part for part in parts if part != "__init__")


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_the_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    results = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert results.attempted > 0
    assert results.failed == 0


def snippets(path, language):
    """Fenced blocks of a language; a block's fence may be longer than three ticks."""
    pattern = rf"^(?P<fence>`{{3,}}){language}\n(?P<body>.*?)^(?P=fence)$"
    text = path.read_text(encoding="utf-8")
    return [match["body"] for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE)]


@pytest.mark.sandbox
@pytest.mark.parametrize("number", range(len(snippets(ROOT / "README.md", "python"))))
def test_the_snippets_of_the_readme(number, tmp_path):
    program = snippets(ROOT / "README.md", "python")[number]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_readme_has_a_snippet():
    assert snippets(ROOT / "README.md", "python")


def commands():
    """Each `wmrl ...` line that a page shows, without its prompt."""
    for page in PAGES:
        for block in snippets(page, "(?:console|sh|bash)"):
            yield from re.findall(r"^(?:\$ )?(wmrl \w.*)$", block, re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_shown_commands_name_flags_that_exist(command, capsys):
    from wmrl_agents.cli import main

    _, subcommand, *arguments = command.split("#")[0].split()
    nested = arguments[:1] if subcommand in ("cache", "libero", "sandbox", "tasks", "tiny-coder") else []
    with pytest.raises(SystemExit) as stop:
        main([subcommand, *nested, "--help"])
    assert stop.value.code == 0
    usage = capsys.readouterr().out
    assert all(argument in usage for argument in arguments if argument.startswith("--"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]
    assert missing == []


def rooms():
    """Paths in the tree of docs/architecture.md."""
    (tree,) = snippets(ROOT / "docs" / "architecture.md", "text")
    folders: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.split(r"\s{2,}", line.strip())[0].split():
            path = "".join(folders[:depth]) + name
            yield path
            if name.endswith("/"):
                folders[depth:] = [name]


def test_the_architecture_page_names_only_what_exists():
    assert [path for path in rooms() if not (ROOT / path).exists()] == []


def test_the_architecture_page_names_every_module():
    modules = [
        path.relative_to(ROOT).as_posix()
        for folder in ("wmrl_envs", "wmrl_rewards", "agents", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(set(modules) - set(rooms())) == []


def test_the_site_builds_without_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        tmp_path / "site",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "architecture" / "index.html").is_file()


def test_the_faults_are_shown_by_tests_that_exist():
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    attacks = {attack.name for attack in ATTACKS}
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [row.split(" | ")[2] for row in rows if not row.startswith("| what goes wrong")]
    assert len(cells) >= 33
    for cell in cells:
        named, hostile = set(re.findall(r"`(test_\w+)`", cell)), set(re.findall(r'"(.+?)"', cell))
        assert named | hostile
        assert named <= tests
        assert hostile <= attacks
