"""Runs any Python script under any launcher, with torch's own environment variables."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, RunFailed
from lockstep.launch import find
from lockstep.launch.base import Job, Outcome
from lockstep.launch.program import shown_name
from lockstep.registry import LAUNCHERS
from lockstep.train.failure import how_it_ended
from lockstep.world.addresses import candidate_ports, free_port, job_of_parent, resolve
from lockstep.world.detect import detect
from lockstep.world.place import Place
from lockstep.world.resources import OMP, choose_threads, idle_cpus, local_workers, read_threads, usable_cpus

if TYPE_CHECKING:
    from lockstep.launch.start import LauncherOptions


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every rank of `lockstep launch` runs."""

    script: tuple[str, ...]
    """A script, or `-m` and a module, and its arguments."""
    python: str = sys.executable
    """The Python that runs it."""
    runner: tuple[str, ...] = ()
    """What runs it in turn, and gets it as arguments: `-m`, a module, and its own arguments."""


def launch_script(program: Program, workers: int, launcher: str, threads: str | None, options: LauncherOptions) -> None:
    """Start a program on `workers` workers and wait; raise with the first rank that failed."""
    outcome = start_script(program, workers, launcher, threads, options)
    if outcome.code:
        name, who = shown_name(program.script), next(iter(outcome.exits.items()), None)
        if who is None:
            raise RunFailed(f"{name} failed: {launcher} ended with exit code {outcome.code}")
        raise RunFailed(f"rank {who[0]} of {name} failed: {how_it_ended(who[1])}")


def start_script(
    program: Program, workers: int, launcher: str, threads: str | None, options: LauncherOptions
) -> Outcome:
    """Start a program on `workers` workers, and return how they ended.

    Every rank gets its number of threads (as typed, or None) as OMP_NUM_THREADS, under every launcher.
    """
    chosen = find(launcher, workers)
    count = _threads(threads, local_workers(workers, options.nodes), elsewhere=options.nodes is not None)
    rendezvous = {}
    if LAUNCHERS.get(launcher).local_rendezvous and "MASTER_ADDR" not in os.environ:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return chosen.start(
        Job(
            workers=workers,
            script=(*program.runner, *program.script),
            python=program.python,
            nodes=options.nodes,
            threads=count,
            extra=options.extra,
            variables=rendezvous,
        )
    )


def _threads(typed: str | None, local_size: int, *, elsewhere: bool) -> int:
    """Return the threads of each rank; say so if the default leaves CPUs of this machine idle."""
    if typed is not None:
        return read_threads(typed, usable_cpus(), local_size)
    threads, _ = choose_threads(os.environ)
    idle = idle_cpus(threads, usable_cpus(), local_size)
    if idle and OMP not in os.environ and not elsewhere:
        print(f"lockstep: {idle}", file=sys.stderr, flush=True)  # noqa: T201
    return threads


def variables(place: Place) -> dict[str, str]:
    """Return torch's own variables for a place that another launcher has set."""
    if place.port is not None and place.head is not None:
        head, port = place.head, place.port
    else:
        if place.nodes > 1 and (place.head is None or place.job is None):
            raise BadInput(
                f"the ranks are on {place.nodes} hosts, and the launcher does not say where rank 0 is: set MASTER_ADDR "
                "(the host of rank 0) and MASTER_PORT for all ranks"
            )
        head = resolve(place.head) if place.head and place.nodes > 1 else "127.0.0.1"
        port = next(candidate_ports(place.job or job_of_parent()))
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "MASTER_ADDR": head,
        "MASTER_PORT": str(port),
        "LOCKSTEP_LAUNCHER": place.launcher,
    }


if __name__ == "__main__":
    rank_variables = variables(detect(os.environ))
    os.environ.update(rank_variables)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - the rank itself
