"""CONTRIBUTING.md, followed to the letter: files are written where it says, lines are added, and commands are run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.report.collect import read_finished
from lockstep.report.parity import SAME
from tests.commands import LOCKSTEP, Done, Marked
from tests.toy import write_metadata

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHAPTER = PAGE[PAGE.index("## How to add one") : PAGE.index("## Tests")]
FENCE = r"\n\n```(?:python|toml)\n(.*?)^```$"
WRITE = re.compile(r"^Write `([^`]+)`:" + FENCE, re.MULTILINE | re.DOTALL)
ADD = re.compile(r"^At the end of `(\w+)` in `([^`]+)`, add:" + FENCE, re.MULTILINE | re.DOTALL)
RUN = re.compile(r"\brun\b[^`]*(?:`[^`\n]*`[^`]*)*:\n\n```\n(lockstep [^\n]*)\n```$", re.MULTILINE)
SECONDS = 900


@dataclass(frozen=True)
class Example:
    """What a section of the chapter tells the reader to do."""

    files: dict[str, str]
    """Texts by path."""
    lines: list[tuple[str, str, str]]
    """The list that a line is added to, its file, and the line."""
    command: list[str]
    """What to run then."""


def examples() -> dict[str, Example]:
    """Return the examples by the heading of their section."""
    parts = re.split(r"^### (.+)$", CHAPTER, flags=re.MULTILINE)[1:]
    return {title: _example(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def _example(text: str) -> Example:
    files = dict(WRITE.findall(text))
    lines = ADD.findall(text)
    (command,) = RUN.findall(text)
    assert text.count("```") == 2 * (len(files) + len(lines) + 1), "a block that nothing says what to do with"
    return Example(files, lines, shlex.split(command))


EXAMPLES = examples()


def follow(example: Example, folder: Path) -> Done:
    """Write the files and add the lines in a copy of the source, or beside it, and run the command."""
    inside = any(path.startswith("src/") for path in example.files)
    if inside:
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path, text in example.files.items():
        target = folder / path
        assert not target.exists()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for name, path, line in example.lines:
        add_line(folder / path, name, line)
    if not inside:
        project = tomllib.loads(example.files["pyproject.toml"])["project"]
        write_metadata(folder, project["name"], project["entry-points"])
    check_style(folder, [path for path in example.files if path.endswith(".py")])
    environment = {"PYTHONPATH": str(folder / "src" if inside else folder), "COLUMNS": "250"}
    work = folder / "work"
    work.mkdir()
    marked = Marked(environment)
    done = marked.run([LOCKSTEP, *example.command[1:]], work, SECONDS)
    assert done.code == 0, done.text
    assert marked.survivors() == []
    return done


def add_line(path: Path, name: str, line: str) -> None:
    """Add a line at the end of a tuple that a file assigns or hands over under this name."""
    text = path.read_text()
    (whole,) = re.finditer(rf'^ *{name} ?= ?\(\n(?: *".*",\n)+', text, re.MULTILINE)
    path.write_text(text[: whole.end()] + line + text[whole.end() :])


def check_style(folder: Path, files: list[str]) -> None:
    """The examples are code as the project wants it."""
    settings = ["--config", str(ROOT / "pyproject.toml")]
    for command in (["check", "--no-cache"], ["format", "--no-cache", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, *settings, *files]
        done = subprocess.run(ruff, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def row(done: Done, name: str) -> str:
    """Return the line of a way in the first table of a comparison."""
    return next(line for line in done.out.splitlines() if re.match(rf"\W*{name}\b", line))


def check_strategy(done: Done, _: Path) -> None:
    assert SAME in row(done, "messages"), done.out


def check_launcher(_: Done, work: Path) -> None:
    (folder,) = (path.parent for path in work.rglob("run.json"))
    run = read_finished(folder)
    assert run.setup.spec.launcher == "fresh"
    assert len(run.steps) == 2


def check_peer(done: Done, _: Path) -> None:
    assert "other samples" in done.out
    assert "plain" in row(done, "plain")


def check_benchmark(done: Done, _: Path) -> None:
    assert "barrier: shm / gloo" in done.out
    assert done.err.startswith("barrier: 2 workers: start ...\nbarrier: took "), done.err


def check_chart(_: Done, work: Path) -> None:
    page = (work / "out" / "report.html").read_text()
    assert "Bars of samples a second: single " in page


def check_outside(done: Done, _: Path) -> None:
    assert "a millisecond of sleep" in done.out


CHECKS: dict[str, Callable[[Done, Path], None]] = {
    "A strategy": check_strategy,
    "A launcher": check_launcher,
    "A peer": check_peer,
    "A benchmark": check_benchmark,
    "A chart": check_chart,
    "In a package of your own": check_outside,
}


SOAKED = ("A launcher", "A peer", "A chart")
"""Each trains or compares; tests/multiprocess/test_outside_package.py has one of each. The others run always."""


def test_every_example_is_followed() -> None:
    assert list(EXAMPLES) == list(CHECKS)


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.soak) if title in SOAKED else title for title in CHECKS]
)
def test_example(title: str, tmp_path: Path) -> None:
    done = follow(EXAMPLES[title], tmp_path)
    CHECKS[title](done, tmp_path / "work")
