"""`lockstep doctor`: what would be used here, and which variables made it so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.errors import BadInput
from lockstep.registry import LAUNCHERS, PEERS, STRATEGIES, Description, Registry
from lockstep.train.spec import versions
from lockstep.world.detect import conflicts, detect
from lockstep.world.place import Place
from lockstep.world.resources import choose_threads, usable_cpus
from lockstep.world.worker_device import VISIBLE, choose_device

_REGISTRIES: tuple[Registry[Any], ...] = (STRATEGIES, PEERS, LAUNCHERS)


def examine(env: Mapping[str, str] = os.environ, device_asked: str = "auto") -> dict[str, Any]:
    """Return the decision and its reasons; an environment that cannot work is an error here as in `join`."""
    place = detect(env)
    cpus = usable_cpus()
    threads, why = choose_threads(env)
    try:
        device: str = choose_device(device_asked, place, own=True)
    except BadInput as error:
        if device_asked != "auto":
            raise
        device = f"none: {error}"
    return {
        "started_by": place.launcher,
        "because_of": {name: env[name] for name in place.evidence if name in env},
        "conflicts": conflicts(env),
        "rank": place.rank,
        "size": place.size,
        "local_rank": place.local_rank,
        "local_size": place.local_size,
        "node": place.node,
        "nodes": place.nodes,
        "rendezvous": _meeting(place),
        "device": device,
        "devices": devices_here(),
        "hidden_devices": {name: env[name] for name in VISIBLE if name in env},
        "threads": threads,
        "threads_because": why,
        "usable_cpus": cpus,
        "backend": None if place.size == 1 else _backend(device),
        "strategies": usable(STRATEGIES.all()),
        "peers": usable(PEERS.all()),
        "launchers": usable(LAUNCHERS.all()),
        "not_used": [text for registry in _REGISTRIES for text in registry.refused()],
        "dev_shm_bytes": _shared_memory(),
        "versions": versions(),
    }


def _meeting(place: Place) -> str:
    if place.size == 1:
        return "none needed"
    if place.rendezvous:
        return place.rendezvous
    if place.port is None and place.nodes == 1 and place.hosts_known:
        return "a socket of this host without a port"
    return f"{place.head or '127.0.0.1'}:{place.port or 'a port derived from the job'}"


def _backend(device: str) -> str:
    import torch.distributed as dist

    return str(dist.get_default_backend_for_device(device.partition(":")[0]))


def devices_here() -> list[str]:
    """Return the accelerators that this process sees: name, memory."""
    import torch

    if not torch.accelerator.is_available():
        return []
    kind = str(torch.accelerator.current_accelerator())
    module = torch.get_device_module(kind)
    name_of = getattr(module, "get_device_name", lambda _: "no name")
    return [f"{kind}:{index} {name_of(index)}" for index in range(torch.accelerator.device_count())]


def usable(descriptions: Sequence[Description]) -> dict[str, str]:
    """Return `yes`, or why not, by name."""
    return {description.name: description.unavailable() or "yes" for description in descriptions}


def _shared_memory() -> int | None:
    return shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None  # noqa: S108, PTH112
