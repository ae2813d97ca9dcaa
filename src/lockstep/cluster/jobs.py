"""Jobs of this user: what the queue says of them, and what their run folders say."""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.cluster.run_stats import RunStats, run_stats
from lockstep.cluster.slurm_commands import SlurmFailed, call
from lockstep.errors import BadInput
from lockstep.runs.listing import State, run_folders
from lockstep.train.schema.rank_jsonl import header_of, rank_path, read_rank

FORMAT = "%i|%u|%T|%N|%L|%Z|%r|%j"
"""Of squeue: number, user, state, nodes, time left, folder, reason, name (last: it may contain anything)."""


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job as the queue has it."""

    number: str
    """Of the job; of a task of an array, `12_3`."""
    user: str
    """Whose."""
    state: str
    """Slurm's word."""
    nodes: str
    """Where it runs."""
    time_left: str
    """Of its time limit."""
    folder: str
    """Where it was submitted."""
    reason: str
    """Why it waits; empty if Slurm gives no reason."""
    name: str
    """As given."""


def queued(*options: str) -> list[QueuedJob]:
    """Return jobs of the queue."""
    lines = call(["squeue", "--noheader", f"--format={FORMAT}", *options]).splitlines()
    split = [line.split("|", 7) for line in lines if line.count("|") >= 7]
    names = ("number", "user", "state", "nodes", "time_left", "folder", "reason", "name")
    jobs = [dict(zip(names, map(str.strip, parts), strict=True)) for parts in split]
    return [QueuedJob(**{**job, "reason": "" if job["reason"] == "None" else job["reason"]}) for job in jobs]


def own_jobs() -> list[QueuedJob]:
    """Return the jobs of this user; none where there is no Slurm."""
    return queued(f"--user={getpass.getuser()}") if shutil.which("squeue") is not None else []


def job_of(number: str) -> QueuedJob | None:
    """Return a job of the queue; None if it has left it, or never was in it."""
    if shutil.which("squeue") is None:
        return None
    try:
        return next(iter(queued(f"--jobs={number}")), None)
    except SlurmFailed as error:
        if "Invalid job id" in str(error):
            return None
        raise


def folder_of(number: str, runs: Path) -> Path:
    """Return the run folder of a job; refuse one that is somebody else's, or that no run here belongs to."""
    job = job_of(number)
    if job is not None and job.user != getpass.getuser():
        raise BadInput(f"job {number} is of user {job.user}: only your own jobs are shown")
    places = [runs]
    if job is not None and (Path(job.folder) / "runs").resolve() != runs.resolve():
        places.append(Path(job.folder) / "runs")
    for place in places:
        for folder in sorted(run_folders(place)) if place.is_dir() else []:
            if folder.name.endswith(f"-{number}") or job_in(folder) == number.partition("_")[0]:
                return folder
    if job is not None:
        why = f" ({job.reason})" if job.reason else ""
        raise BadInput(f"job {number} is {job.state}{why}, and has no run in {_or(places)} yet")
    raise BadInput(
        f"no job {number} is in the queue, and no run in {_or(places)} belongs to one: give its run folder, or --runs"
    )


def job_in(folder: Path) -> str:
    """Return the number of the job that trained last in a run folder; empty if none did."""
    path = rank_path(folder, 0)
    try:
        header = header_of(read_rank(path)) if path.is_file() else None
    except BadInput:
        return ""
    return header.job if header else ""


def job_rows(runs: Path) -> Iterator[tuple[QueuedJob | None, RunStats | None]]:
    """Yield the jobs of the queue with their runs, then the runs that go on without one."""
    shown: set[Path] = set()
    for job in own_jobs():
        try:
            folder = folder_of(job.number, runs)
            shown.add(folder.resolve())
            yield job, run_stats(folder)
        except BadInput:
            yield job, None
    for folder in run_folders(runs) if runs.is_dir() else ():
        if folder.resolve() in shown:
            continue
        try:
            stats = run_stats(folder)
        except BadInput:
            continue  # `lockstep runs` says what is wrong with it
        if stats.run.state is State.running or stats.job:
            yield None, stats


def is_job_number(text: str) -> bool:
    """Say whether a word is the number of a job, and not a folder."""
    return re.fullmatch(r"[0-9]+(_[0-9]+)?", text) is not None and not Path(text).is_dir()


def _or(places: list[Path]) -> str:
    return " or ".join(map(str, places))
