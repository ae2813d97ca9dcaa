"""What torch asks of a process group and of a Work that are written in Python, under all the names it uses.

C++ calls `getRank`, torch's Python `rank`; DTensor and FSDP2 fail without the group's name.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

FORMER_NAMES: Final = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
"""Until torch 2.12 it called a group's collectives by the names on the left."""

_Group = TypeVar("_Group", bound=type[dist.ProcessGroup])


def with_former_names(group: _Group) -> _Group:
    """Let a class of groups answer to the names of older versions as well; a decorator."""
    for former, name in FORMER_NAMES.items():
        setattr(group, former, getattr(group, name))
    return group


def time_limit_of(group: dist.ProcessGroup, device: str) -> timedelta | None:
    """Return how long a group's collectives on such a device may take; None where its backend does not tell."""
    if isinstance(group, PythonProcessGroup):
        return group.time_limit
    options = getattr(group._get_backend(torch.device(device)), "options", None)
    return options._timeout if options is not None else None


class PythonProcessGroup(dist.ProcessGroup):
    """A process group written in Python: its rank, size and names."""

    def __init__(self, rank: int, size: int, backend: str, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._size, self._backend = rank, size, backend
        self.time_limit = timeout
        """Of a collective."""
        self._name, self._desc = "", backend

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def name(self) -> str:
        """Return the backend's name."""
        return self._backend

    def getRank(self) -> int:  # noqa: N802 - C++ calls it
        """Return this process's rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return self._backend

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name that torch gives the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name that torch gave the group."""
        return self._name

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Take the description that torch gives the group."""
        self._desc = desc

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description that torch gave the group."""
        return self._desc

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """Return the name that torch gave the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Return the description that torch gave the group."""
        return self._desc

    def _get_backend(self, device: torch.device) -> Any:
        """Return what carries the tensors of a device: this group is its own backend.

        Since torch 2.15, `batch_isend_irecv` asks groups that are written in Python too, and then for the two below.
        """
        return self if device.type == "cpu" else super()._get_backend(device)

    supports_coalescing: Final = False
    """Whether torch may hand over several operations at once."""
    supports_splitting: Final = False
    """Whether a part of the group can be made without a new rendezvous."""

    @property
    def _device_types(self) -> list[torch.device]:
        """Return the devices whose tensors the group takes: torch chooses one for the objects that it sends."""
        return [torch.device("cpu")]


class PythonWork(dist.Work):
    """A Work written in Python: `dist.recv` asks the private name who the sender was."""

    def _source_rank(self) -> int:
        return self.source_rank()
