"""A group: ranks of the world that talk to each other, and the torch process group that carries it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from lockstep.torch_compat.process_group import time_limit_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some ranks of the world, as one of them sees it. Alone, it needs no process group and exchanges nothing."""

    ranks: tuple[int, ...]
    """The members' ranks in the world, in the group's order."""
    rank: int
    """This process's position among them."""
    process_group: dist.ProcessGroup | None = None
    """What carries messages and collectives; None for one rank alone."""
    device: str = "cpu"
    """Where a tensor must be to be exchanged."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.ranks):
            raise ValueError(f"position {self.rank} in a group of {len(self.ranks)} ranks")
        if len(self.ranks) > 1 and self.process_group is None:
            raise ValueError(f"the ranks {self.ranks} need a process group to talk to each other")

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    @property
    def backend(self) -> str:
        """The torch.distributed backend; empty for one rank alone."""
        return str(dist.get_backend(self.process_group)) if self.process_group is not None else ""

    @property
    def time_limit(self) -> timedelta | None:
        """How long a collective may take; None for one rank alone, and where the backend does not tell."""
        return time_limit_of(self.process_group, self.device) if self.process_group is not None else None

    @classmethod
    def alone(cls, rank: int = 0, device: str = "cpu") -> Group:
        """Return a group of one."""
        return cls(ranks=(rank,), rank=0, device=device)

    @classmethod
    def of(cls, process_group: dist.ProcessGroup, device: str = "cpu") -> Group:
        """Return the group that a torch process group carries."""
        ranks: Sequence[int] = dist.get_process_group_ranks(process_group)
        return cls(ranks=tuple(ranks), rank=dist.get_rank(process_group), process_group=process_group, device=device)

    @classmethod
    def everyone(cls, device: str = "cpu") -> Group:
        """Return the group of all ranks of the default process group; alone where there is none."""
        if not dist.is_initialized():
            return cls.alone(device=device)
        assert dist.group.WORLD is not None
        return cls.of(dist.group.WORLD, device)

    def barrier(self) -> None:
        """Wait for all ranks of the group."""
        if self.size > 1:
            dist.barrier(self.process_group)
