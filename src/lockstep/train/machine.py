"""Whether this machine has the device and the backend that a run asks for; checked before any worker starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import BadInput, nearest
from lockstep.registry import LAUNCHERS, describe
from lockstep.world.place import Place
from lockstep.world.worker_device import choose_device

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec

DEVICE_OF = {"nccl": "cuda", "xccl": "xpu"}
"""Backends that move tensors of one kind of device only."""


def check_machine(spec: RunSpec) -> str | None:
    """Refuse a device or a backend that is not there; return the device of the first worker.

    Other hosts, where srun starts workers, are not looked at: None.
    """
    processes = describe(spec.strategy).processes(spec.workers)
    if spec.launcher in LAUNCHERS and not LAUNCHERS.get(spec.launcher).this_host:
        return None
    place = Place(launcher=spec.launcher, rank=0, size=processes, local_rank=0, local_size=processes)
    device = choose_device(spec.device, place)
    if spec.backend is not None and processes > 1:
        check_backend(spec.backend, device.partition(":")[0])
    return device


def check_backend(backend: str, device: str) -> None:
    """Refuse a torch.distributed backend that this torch does not have, or that cannot move this device's tensors."""
    import torch.distributed as dist

    advice = "use --backend gloo, or leave it out"
    for part in backend.split(","):
        kind, _, name = part.rpartition(":")
        known = sorted(name for name in dist.Backend.backend_list if name != "undefined" and name != "fake")
        if name.lower() not in known:
            raise BadInput(f"--backend {backend}: torch.distributed has no backend {name!r}{nearest(name, known)}")
        if not dist.is_backend_available(name):
            raise BadInput(f"--backend {backend}: this torch was built without {name}: {advice}")
        needed = DEVICE_OF.get(name.lower())
        if needed not in (None, kind or device):
            raise BadInput(
                f"--backend {backend}: {name} needs {needed} devices, and the workers use {device}: {advice}"
            )
