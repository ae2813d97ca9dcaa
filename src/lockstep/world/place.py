"""This process's place among the workers: as the environment tells it (Place), and once it has joined (World)."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.world.resources import choose_threads, usable_cpus

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a launcher put this process, before any device or connection exists."""

    launcher: str
    """Who started it: `spawn`, `torchrun`, `manual`, `openmpi`, `mpich`, `mvapich2`, `jsrun`, `srun`, `inline`."""
    rank: int = 0
    """This process among all of the world."""
    size: int = 1
    """How many processes the world has."""
    local_rank: int = 0
    """This process among those of its host."""
    local_size: int = 1
    """How many processes of the world run on this host."""
    node: int = 0
    """Which host this is."""
    nodes: int = 1
    """How many hosts the world has."""
    head: str | None = None
    """The host of rank 0, where the launcher tells it."""
    port: int | None = None
    """The port that rank 0 listens on, where the launcher tells it."""
    job: str | None = None
    """What tells this world from others that run at the same time."""
    rendezvous: str | None = None
    """Where the ranks meet, if the launcher says so itself (`file:///...`)."""
    located: bool = True
    """Whether the launcher told which ranks share a host; if not, the ranks tell each other."""
    evidence: tuple[str, ...] = field(default=())
    """The variables that decided."""

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise BadInput(
                f"rank {self.rank} of {self.size} (from {self._said_by()}): a rank counts from 0 to size - 1"
            )
        if self.local_size < 1 or not 0 <= self.local_rank < self.local_size:
            raise BadInput(
                f"local rank {self.local_rank} of {self.local_size} on this host (from {self._said_by()}): "
                "it counts from 0 to local size - 1"
            )
        if self.local_size > self.size:
            raise BadInput(f"{self.local_size} ranks on this host but only {self.size} in all (from {self._said_by()})")

    def _said_by(self) -> str:
        return ", ".join(self.evidence) or "the command line"


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place: who it is, what it computes on, and who started it."""

    rank: int
    """This process among all of the world."""
    size: int
    """How many processes the world has."""
    local_rank: int
    """This process among those of its host."""
    local_size: int
    """How many processes of the world run on this host."""
    node: int
    """Which host this is, from 0."""
    nodes: int
    """How many hosts the world has."""
    host: str
    """This host's name."""
    device: str
    """What it computes on: `cpu`, `cuda:1`, ..."""
    threads: int
    """Threads that one operation may use; part of the arithmetic."""
    backend: str | None
    """The torch.distributed backend; None for a world of one."""
    launcher: str
    """Who started it."""

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the connections to the other ranks; safe to call twice."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    @classmethod
    def alone(cls, *, device: str = "cpu", threads: int | None = None) -> World:
        """Return a world of one, for code that needs no launcher."""
        place = Place(launcher="inline")
        count, _ = choose_threads(os.environ, usable_cpus(), 1)
        return cls.at(place, device=device, threads=threads or count, backend=None)

    @classmethod
    def at(cls, place: Place, *, device: str, threads: int, backend: str | None) -> World:
        """Return the world of a place, now that device, threads and backend are chosen."""
        return cls(
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            node=place.node,
            nodes=place.nodes,
            host=socket.gethostname(),
            device=device,
            threads=threads,
            backend=backend,
            launcher=place.launcher,
        )
