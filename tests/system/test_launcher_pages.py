"""Every command of the launchers' pages does what the page says: each is run as it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.commands import BIN, TINY, Marked, finish
from tests.system.slurm import SlurmCluster

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.glob("launcher-*.md"), DOCS / "slurm-jobs.md"])
PROGRAMS = ("lockstep", "torchrun", "srun", "mpirun")
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
"""What Open MPI wants of root, and of two ranks on a small machine."""


def commands(page: Path) -> list[list[str]]:
    """Return the commands of a page, each as words; those of one block that need each other are together."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(PROGRAMS)]
    assert lines, f"{page} has no commands"
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    needs_slurm = "sbatch" in text or "```\nsrun" in text or "--launcher srun" in text
    cluster: SlurmCluster | None = request.getfixturevalue("slurm") if needs_slurm else None
    marked = Marked({**(cluster.env if cluster else {}), **MPI})
    marked.env["PATH"] = f"{BIN}:{marked.env['PATH']}"
    if "mpirun" in text:
        request.getfixturevalue("openmpi")
    shutil.copy(TINY, tmp_path / "train.py")
    together = [command for command in commands(page) if "--rank" in command]
    for done in [finish(process) for process in [marked.start(command, tmp_path) for command in together]]:
        assert done.code == 0, done.text
    for command in (command for command in commands(page) if command not in together):
        done = marked.run(command, tmp_path)
        assert done.code == 0, f"{shlex.join(command)}\n{done.text}"
    if cluster is not None:
        cluster.run("scancel", "--user=root", "--name=train")
    assert marked.survivors(30.0) == []
