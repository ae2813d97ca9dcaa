"""`lockstep notebook kernel`: a kernel that Jupyter finds and starts, with the modules of a site loaded first."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.commands import CommandLine
from tests.kernels import Kernel

PROFILE = """
site = "A made-up site"
modules = ["module purge", "module load release/1"]
environment = { SITE_VARIABLE = "from the profile" }

[partitions.ml]
nodes = [{ cores = 4 }]
modules = ["ml Python/3.11"]
"""
# As an environment-modules installation does it: a shell function that a login shell defines.
MODULES = """
module() {
  echo "$@" >> "$HOME/loaded.txt"
  case "$2" in absent*) echo "unable to locate a modulefile for '$2'" >&2; return 1;; esac
}
ml() { module load "$@"; }
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A login host of the site."""
    (tmp_path / ".bash_profile").write_text(MODULES)
    (tmp_path / "site.toml").write_text(PROFILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    return tmp_path


def test_the_kernel_of_a_profile_starts_with_its_modules(home: Path, cli: CommandLine) -> None:
    arguments = ["notebook", "kernel", "--name", "lockstep", "--profile", "site.toml"]
    shown = cli(*arguments, "--dry-run")
    assert shown.code == 0, shown.text
    assert "module purge\nmodule load release/1\nml Python/3.11\nexec " in shown.out
    assert not (home / "jupyter").exists()
    made = cli(*arguments)
    assert made.code == 0, made.text
    assert cli(*arguments).code == 0, "its own kernel is replaced"
    folder = home / "jupyter" / "kernels" / "lockstep"
    assert sorted(path.name for path in folder.iterdir()) == ["kernel.json", "start"]
    assert os.access(folder / "start", os.X_OK)
    (home / "loaded.txt").unlink()
    with Kernel(home, name="lockstep") as kernel:
        shown_cell = kernel.run("import os, lockstep.notebook; os.environ['SITE_VARIABLE']")
    assert shown_cell.result == "'from the profile'", shown_cell
    assert (home / "loaded.txt").read_text() == "purge\nload release/1\nload Python/3.11\n"


def test_the_commands_of_the_page(home: Path, cli: CommandLine) -> None:
    """With --dry-run: the modules of the shipped profiles are on their sites only."""
    text = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("lockstep notebook ")]
    for command in commands:
        done = cli(*shlex.split(command, comments=True)[1:], "--dry-run")
        assert done.code == 0, done.text
        assert "module load modenv/hiera\n" in done.out
    assert len(commands) == 2


def test_without_a_profile_it_is_this_python(home: Path, cli: CommandLine) -> None:
    made = cli("notebook", "kernel", "--name", "plain", "--json")
    assert made.code == 0, made.text
    answer = json.loads(made.out)
    about = json.loads(answer["files"]["kernel.json"])
    assert about["argv"][1:] == ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert answer["written"]
    assert Path(answer["folder"]).is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "absent.toml"], "with the module lines of the profile this kernel would not start"),
        (["--profile", "nowhere"], "nowhere"),
        (["--name", "My Kernel"], "--name 'My Kernel': use small letters"),
        (["--name", "theirs"], "is a kernel that something else made"),
        (["--partition", "ml"], "--partition ml is one of a site: give --profile too"),
    ],
)
def test_what_would_not_start_is_not_written(home: Path, cli: CommandLine, arguments: list[str], message: str) -> None:
    (home / "absent.toml").write_text(PROFILE.replace("release/1", "absent/1"))
    theirs = home / "jupyter" / "kernels" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "kernel.json").write_text('{"argv": ["python"], "metadata": {}}')
    done = cli("notebook", "kernel", *arguments)
    assert done.code == 2, done.text
    assert message in done.err
    assert [path.name for path in theirs.parent.iterdir()] == ["theirs"]
    assert (theirs / "kernel.json").read_text().startswith('{"argv": ["python"]')


def test_an_environment_without_ipykernel_is_refused(
    home: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = cli("notebook", "kernel")
    assert done.code == 2
    assert "has no ipykernel" in done.err
    assert "pip install 'lockstep-train[notebook]'" in done.err
    assert not (home / "jupyter").exists()
