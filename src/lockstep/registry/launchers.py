"""What a launcher says of itself; and the launchers there are."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.registry.base import Description, Registry


@dataclass(frozen=True, kw_only=True)
class LauncherDescription(Description):
    """A launcher: starts the processes of a world."""

    implementation: str
    """`module:Class`, a subclass of `lockstep.launch.base.Launcher`."""
    one_process: bool = False
    """Whether it can start one process only."""
    this_host: bool = False
    """Whether all its processes run on this machine, whose devices are then checked before any is started."""
    forks: bool = False
    """Whether it forks its processes from Lockstep's fork server, which then imports in advance what training needs."""
    local_rendezvous: bool = False
    """Whether all its processes run on this host and must get a rendezvous (MASTER_ADDR, MASTER_PORT) from Lockstep."""


LAUNCHERS = Registry(
    "launcher",
    LauncherDescription,
    value="LAUNCHER",
    modules=(
        "lockstep.launch.inline",
        "lockstep.launch.spawn",
        "lockstep.launch.torchrun",
        "lockstep.launch.srun",
        "lockstep.launch.mpirun",
    ),
    group="lockstep.launchers",
)
"""In the order of help texts."""
