"""Launchers, one file each; how a run is started, and what a started process does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.registry import LAUNCHERS
from lockstep.registry.base import import_object

if TYPE_CHECKING:
    from lockstep.launch.base import Launcher


def find(name: str, processes: int) -> Launcher:
    """Return a launcher that can start so many processes on this machine; else raise with the reason."""
    description = LAUNCHERS.get(name)
    if (reason := description.unavailable()) is not None:
        raise BadInput(reason)
    if description.one_process and processes > 1:
        raise BadInput(f"launcher {name} runs one worker, found {processes}: use --launcher spawn")
    launcher: Launcher = import_object(description.implementation)()
    return launcher
