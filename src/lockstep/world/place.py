"""This process among the workers: as the environment describes it (Place), and after it has joined (World)."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from types import TracebackType

    from lockstep.world.host_watch import HostWatch


LAST_COLLECTIVE = 0.05
"""Seconds after the last collective. gloo's own threads free its tensors, for which they need the interpreter's lock; a
process that ends before they got it is aborted, since Python then ends a thread in the middle of C++."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a launcher put this process, before any device or connection exists."""

    launcher: str
    """Who started it: `spawn`, `torchrun`, `manual`, `openmpi`, `mpich`, `mvapich2`, `jsrun`, `srun`, `inline`."""
    rank: int = 0
    """The number of this process among all of the world."""
    size: int = 1
    """How many processes the world has."""
    local_rank: int = 0
    """The number of this process among those of its host."""
    local_size: int = 1
    """How many processes of the world run on this host."""
    node: int = 0
    """The number of this host."""
    nodes: int = 1
    """How many hosts the world has."""
    head: str | None = None
    """The host of rank 0, if the launcher says so."""
    port: int | None = None
    """The port on which rank 0 listens, if the launcher says so."""
    job: str | None = None
    """A name that distinguishes this world from others that run at the same time."""
    rendezvous: str | None = None
    """The rendezvous, if the launcher itself gives one (`file:///...`)."""
    hosts_known: bool = True
    """Whether the launcher says which ranks share a host; if not, the ranks find out while they join."""
    evidence: tuple[str, ...] = field(default=())
    """The environment variables that decided."""

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise BadInput(
                f"found rank {self.rank} of {self.size} (from {self._source()}), expected a rank from 0 to size - 1"
            )
        if self.local_size < 1 or not 0 <= self.local_rank < self.local_size:
            raise BadInput(
                f"found local rank {self.local_rank} of {self.local_size} on this host (from {self._source()}), "
                "expected a local rank from 0 to local size - 1"
            )
        if self.local_size > self.size:
            raise BadInput(
                f"found {self.local_size} ranks on this host but only {self.size} in all (from {self._source()}): "
                "correct these variables"
            )

    def _source(self) -> str:
        return ", ".join(self.evidence) or "the command line"


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place in the world: its rank, its device and threads, and its launcher."""

    rank: int
    """The number of this process among all of the world."""
    size: int
    """How many processes the world has."""
    local_rank: int
    """The number of this process among those of its host."""
    local_size: int
    """How many processes of the world run on this host."""
    node: int
    """The number of this host, from 0."""
    nodes: int
    """How many hosts the world has."""
    host: str
    """This host's name."""
    device: str
    """The device: `cpu`, `cuda:1`, ..."""
    threads: int
    """Threads that one operation may use; other numbers give other bits."""
    backend: str | None
    """The torch.distributed backend; None for a world of one rank."""
    launcher: str
    """Who started it."""
    watch: HostWatch | None = field(default=None, repr=False, compare=False)
    """What notices that another host vanishes; None on one host."""

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the connections to the other ranks; safe to call twice."""
        import torch.distributed as dist

        if self.watch is not None:
            self.watch.close()
        if dist.is_available() and dist.is_initialized():
            if self.backend == "gloo":
                time.sleep(LAST_COLLECTIVE)
            dist.destroy_process_group()

    @classmethod
    def alone(cls, *, device: str = "cpu", threads: int | None = None) -> World:
        """Return a world of one rank, for code without a launcher; torch's number of threads stays as it is."""
        import torch

        threads = threads or torch.get_num_threads()
        return cls.at(Place(launcher="inline"), device=device, threads=threads, backend=None)

    @classmethod
    def at(
        cls, place: Place, *, device: str, threads: int, backend: str | None, watch: HostWatch | None = None
    ) -> World:
        """Return the world of a place with the chosen device, threads and backend."""
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
            watch=watch,
        )
