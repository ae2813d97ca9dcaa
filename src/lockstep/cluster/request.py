"""What a job asks Slurm for, as typed, and the numbers in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockstep.errors import BadInput

UNITS_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+@:-]*")
"""What may stand in a directive: no space, no quote, no line."""
ARRAY = re.compile(r"[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(%[0-9]+)?")
TIME = re.compile(r"(?:(?P<days>[0-9]{1,5})-)?(?P<rest>[0-9]{1,6}(?::[0-9]{1,2}){0,2})")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The resources of a job; None: nothing is asked for, and the profile or Slurm decides."""

    name: str
    """Of the job."""
    nodes: int = 1
    """Hosts."""
    tasks_per_node: int | None = None
    """Workers of each host."""
    cpus_per_task: int | None = None
    """CPUs of each worker."""
    gpus_per_node: int | None = None
    """GPUs of each host."""
    gpu: str | None = None
    """Their type."""
    memory_mb: int | None = None
    """Of each host."""
    memory_per_cpu_mb: int | None = None
    """Of each CPU; in place of `memory_mb`."""
    time: str | None = None
    """The longest that the job may take, as Slurm reads it."""
    partition: str | None = None
    """Where."""
    account: str | None = None
    """Who pays."""
    array: str | None = None
    """Task numbers, of a job that is run several times."""

    def __post_init__(self) -> None:
        for option, count, least in (
            ("--nodes", self.nodes, 1),
            ("--tasks-per-node", self.tasks_per_node, 1),
            ("--cpus-per-task", self.cpus_per_task, 1),
            ("--gpus-per-node", self.gpus_per_node, 0),
        ):
            if count is not None and not least <= count <= 10**6:
                raise BadInput(f"{option} {count}: expected a number from {least} to a million")
        if self.memory_mb is not None and self.memory_per_cpu_mb is not None:
            raise BadInput("--mem and --mem-per-cpu exclude each other: give the memory of a node, or that of a CPU")
        for option, text in (("--partition", self.partition), ("--account", self.account), ("--name", self.name)):
            if text is not None and (len(text) > 128 or not PLAIN_NAME.fullmatch(text)):
                raise BadInput(f"{option} {text!r:.80}: expected letters, digits and any of _ . + @ : -")
        if self.gpu is not None and not PLAIN_NAME.fullmatch(self.gpu):
            raise BadInput(f"--gpus-per-node {self.gpu!r:.80}: expected a number, or a type and a number, e.g. A100:4")
        if self.array is not None and (len(self.array) > 256 or not ARRAY.fullmatch(self.array)):
            raise BadInput(f"--array {self.array!r:.80}: expected numbers and ranges, e.g. 0-3 or 1,5,9 or 0-99%4")
        if self.time is not None:
            minutes(self.time, "--time")

    @property
    def tasks(self) -> int:
        """Workers of each host: as asked for, else one for each GPU, else one."""
        return self.tasks_per_node or self.gpus_per_node or 1

    @property
    def workers(self) -> int:
        """Workers in all."""
        return self.nodes * self.tasks


def read_gpus(text: str) -> tuple[str | None, int]:
    """Return the type, if one is typed, and the number of `4` or `A100:4`."""
    kind, _, count = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,6}", count) or (kind and not PLAIN_NAME.fullmatch(kind)):
        raise BadInput(f"--gpus-per-node {text!r:.80}: expected a number, or a type and a number, e.g. A100:4")
    return kind or None, int(count)


def read_memory(text: str, option: str) -> int:
    """Return the megabytes of `60000` or `60G`, as Slurm reads them."""
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", text.strip().upper())
    count = 0 if match is None else int(int(match[1]) * UNITS_MB[match[2] or "M"])
    if not 1 <= count <= 10**9:
        raise BadInput(
            f"{option} {text!r:.80}: expected megabytes, or a number with a unit, e.g. {option} 60000 or 60G"
        )
    return count


def minutes(text: str, option: str) -> float:
    """Return the minutes of a time as Slurm reads it: `90`, `90:00`, `1:30:00`, `2-12`, `2-12:00:00`."""
    match = TIME.fullmatch(text)
    if match is None:
        raise BadInput(f"{option} {text!r:.80}: expected minutes, hours:minutes:seconds or days-hours, e.g. 1:30:00")
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:
        hours, mins, seconds = (*parts, 0, 0)[:3]
        total = int(match["days"]) * 1440 + hours * 60 + mins + seconds / 60
    elif len(parts) == 3:
        total = parts[0] * 60 + parts[1] + parts[2] / 60
    else:
        total = parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)
    if total <= 0:
        raise BadInput(f"{option} {text}: expected a time above 0")
    return total
