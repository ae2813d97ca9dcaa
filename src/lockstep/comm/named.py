"""What torch asks a process group about itself: its place, its name, its device."""

from __future__ import annotations

import torch
import torch.distributed as dist


class NamedGroup(dist.ProcessGroup):
    """A process group written in Python; C++ and torch's Python ask for the same things under different names."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._size = rank, size
        self._name, self._desc = "", "shm"

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def name(self) -> str:
        """Return the backend's name."""
        return "shm"

    def getRank(self) -> int:  # noqa: N802 - C++ calls it
        """Return this process's rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return "shm"

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

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]
