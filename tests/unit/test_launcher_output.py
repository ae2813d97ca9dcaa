"""What srun and mpirun print when a rank ends: who it was, how it ended and where, also before its first record."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lockstep.launch import mpirun, srun
from lockstep.launch.base import Job

OPEN_MPI = """\
--------------------------------------------------------------------------
mpirun noticed that process rank 0 with PID 0 on node n1 exited on signal 9 (Killed).
  Process name: [[24683,1],1]
  Exit code:    3
--------------------------------------------------------------------------
"""
MPICH = """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 713 RUNNING AT n2
=   EXIT CODE: 9
"""


@pytest.mark.parametrize("text", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_mpirun(text: str) -> None:
    """What the ranks' own guards say counts: mpirun may name one that it ended itself."""
    output = mpirun.MpirunOutput()
    lines = ["lockstep: rank 1 on n2 ended with -9", *text.splitlines(), "lockstep: rank 0 on n1 ended with 3"]
    assert all(output(line) for line in lines)
    assert not output("a line of the training")
    assert list(output.exits.items()) == [(1, -9), (0, 3)]
    assert output.hosts == {1: "n2", 0: "n1"}


@pytest.mark.parametrize(
    ("flavour", "variable", "script", "code", "exits"),
    [
        ("mpich", "PMI_RANK", "kill -9 $$", -9, {1: -9}),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "kill -9 $$", 137, {1: -9}),
        ("mpich", "PMI_RANK", "exit 3", -9, {1: 3}),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "exit 3", 3, {1: 3}),
        ("mpich", "PMI_RANK", "exit 0", 0, {}),
    ],
)
def test_a_rank_under_mpirun_says_how_it_ended(
    flavour: str, variable: str, script: str, code: int, exits: dict[int, int]
) -> None:
    command = mpirun.arguments(Job(workers=2, folder=Path("out")), flavour)
    guard = command.index(str(mpirun.GUARD))
    ran = subprocess.run(
        [*command[guard - 2 : guard + 2], "sh", "-c", f"echo out; echo err >&2; {script}"],
        env={variable: "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    output = mpirun.MpirunOutput()
    assert [line for line in ran.stderr.splitlines() if not output(line)] == ["err"]
    assert (ran.returncode, ran.stdout, output.exits) == (code, "out\n", exits)


def test_srun() -> None:
    exits: dict[int, int] = {}
    hosts: dict[int, str] = {}
    assert srun.read_line("srun: error: n2: tasks 1,3: Killed", exits, hosts)
    assert srun.read_line("srun: error: n1: task 0: Exited with exit code 1", exits, hosts)
    assert not srun.read_line("a line of the training", exits, hosts)
    assert exits == {1: -9, 3: -9, 0: 1}
    assert hosts == {1: "n2", 3: "n2", 0: "n1"}
