"""Every way in which a person can start a recipe on several workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.world.addresses import free_port
from tests.commands import BIN, LOCKSTEP, CommandLine, Done, Marked, finish

if TYPE_CHECKING:
    from tests.system.slurm import SlurmCluster

MPI_FLAGS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


@dataclass(frozen=True)
class Way:
    """Starts `lockstep run` with these arguments on so many workers."""

    name: str
    run: Callable[[list[str], int, Path, Marked], Done]


def by_launcher(name: str) -> Way:
    def run(arguments: list[str], workers: int, cwd: Path, marked: Marked) -> Done:
        command = [LOCKSTEP, "run", *arguments, "--workers", str(workers), "--launcher", name]
        return marked.run(command, cwd)

    return Way(name, run)


def from_here(request: pytest.FixtureRequest, name: str, *more: str) -> Way:
    """The same from this process, which has torch already; the command itself is started in `test_ends.py`."""

    def run(arguments: list[str], workers: int, cwd: Path, marked: Marked) -> Done:
        cli: CommandLine = request.getfixturevalue("cli")
        return cli("run", *arguments, "--workers", str(workers), "--launcher", name, *more, env=marked.env)

    return Way(name, run)


def typed(name: str, *prefix: str) -> Way:
    """Somebody else's launcher in front of `lockstep run`, without --workers or --launcher."""

    def run(arguments: list[str], workers: int, cwd: Path, marked: Marked) -> Done:
        front = [part.replace("WORKERS", str(workers)) for part in prefix]
        return marked.run([*front, "-m", "lockstep", "run", *arguments], cwd)

    return Way(name, run)


def by_hand(rendezvous: str) -> Way:
    """A terminal per rank, as the command line offers it."""

    def run(arguments: list[str], workers: int, cwd: Path, marked: Marked) -> Done:
        where = f"127.0.0.1:{free_port()}" if rendezvous == "tcp" else f"file://{cwd / 'meet'}"
        commands = [
            [LOCKSTEP, "run", *arguments, "--workers", str(workers), "--rank", str(rank), "--rendezvous", where]
            for rank in range(workers)
        ]
        return _together([marked.start(command, cwd) for command in commands])

    return Way(f"by hand, {rendezvous}", run)


def by_variables(arguments: list[str], workers: int, cwd: Path, marked: Marked) -> Done:
    """A terminal per rank with torch's own variables."""
    port, started = free_port(), []
    for rank in range(workers):
        one = Marked(
            {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        )
        one.env["LOCKSTEP_TEST_MARK"] = marked.mark
        started.append(one.start([LOCKSTEP, "run", *arguments], cwd))
    return _together(started)


def _together(processes: list[subprocess.Popen[str]]) -> Done:
    done = [finish(process) for process in processes]
    return Done(max(one.code for one in done), "".join(one.out for one in done), "".join(one.err for one in done))


TORCHRUN = ("torchrun, typed", str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "WORKERS")
HERE = ["spawn, here", "torchrun, here", "srun", "openmpi", "mpich"]
"""Every launcher that starts several workers, from this process."""
LAUNCHED = ["spawn, here", "torchrun", "srun", "srun over nodes", "openmpi", "mpich"]
TYPED = [
    "by hand, tcp",
    "by hand, file",
    "by variables",
    "torchrun, typed",
    "srun, typed",
    "openmpi, typed",
    "mpich, typed",
]
SYSTEM = ("srun", "openmpi", "mpich")


def marks(name: str, *, soak: bool = False) -> list[pytest.MarkDecorator]:
    """Return the marks of a test that starts ranks in this way; what a service does, no version of torch changes."""
    service = [pytest.mark.system, pytest.mark.pinned_torch] if name.startswith(SYSTEM) else []
    return [*service, *([pytest.mark.soak] if soak else [])]


def params(names: Sequence[str | tuple[str, int | str]], always: Sequence[str] | None = None) -> list[object]:
    """Return pytest parameters (a way, or a way and what else a case has), marked where a service is needed.

    Where `always` is given, the ways that are not in it soak.
    """
    rows = [name if isinstance(name, tuple) else (name,) for name in names]
    return [pytest.param(*row, marks=marks(row[0], soak=always is not None and row[0] not in always)) for row in rows]


def crossed(names: Sequence[str], cases: Iterable[str], soaked: Sequence[str] = ()) -> list[object]:
    """Return every way with every case: the first way always has all, each other way one in turn; the rest soak.

    So do the ways in `soaked`, where another that always runs is close to them.
    """
    cases = list(cases)
    return [
        pytest.param(name, case, marks=marks(name, soak=name in soaked or (place > 0 and number != place % len(cases))))
        for place, name in enumerate(names)
        for number, case in enumerate(cases)
    ]


def make(name: str, request: pytest.FixtureRequest, cwd: Path) -> tuple[Way, Marked]:
    """Return a way and the environment it needs; services are started on demand."""
    kind = name.partition(",")[0].split()[0]
    if kind == "srun":
        cluster: SlurmCluster = request.getfixturevalue("slurm")
        marked = Marked(cluster.env)
        if name == "srun, typed":
            return typed(name, "srun", "-n", "WORKERS", sys.executable), marked
        return from_here(request, "srun", *(["--nodes", "2"] if "nodes" in name else [])), marked
    if kind in ("openmpi", "mpich"):
        mpirun = Path(request.getfixturevalue(kind))
        flags = MPI_FLAGS if kind == "openmpi" else []
        if "typed" in name:
            return typed(name, str(mpirun), *flags, "-n", "WORKERS", sys.executable), Marked()
        folder = cwd / "bin"
        folder.mkdir()
        # Not a link: MPICH looks for its proxy beside the name it was called by.
        (folder / "mpirun").write_text(f'#!/bin/sh\nexec {mpirun} "$@"\n')
        (folder / "mpirun").chmod(0o755)
        marked = Marked()
        marked.env["PATH"] = f"{folder}:{marked.env['PATH']}"
        return from_here(request, "mpirun"), marked
    if name.endswith(", here"):
        return from_here(request, kind), Marked()
    plain = {
        "inline": by_launcher("inline"),
        "spawn": by_launcher("spawn"),
        "torchrun": by_launcher("torchrun"),
        "by hand, tcp": by_hand("tcp"),
        "by hand, file": by_hand("file"),
        "by variables": Way("by variables", by_variables),
        "torchrun, typed": typed(*TORCHRUN),
    }
    return plain[name], Marked()
