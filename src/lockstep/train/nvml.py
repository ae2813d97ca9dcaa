"""How busy an NVIDIA GPU is, by the driver's own library, where it is present."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class GpuLoad:
    """One look at a GPU."""

    busy: float
    """The share of the last moments in which it computed."""
    memory: int
    """Bytes in use on it, by all processes."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpu:
    """One GPU."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def load(self) -> GpuLoad | None:
        """Return how busy it is; None if the driver does not say."""
        use, memory = _Utilization(), _Memory()
        codes = (
            self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(use)),
            self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)),
        )
        return None if any(codes) else GpuLoad(min(1.0, use.gpu / 100), int(memory.used))


def open_gpu(device: str) -> Gpu | None:
    """Return the GPU of a torch device; None if it is none of NVIDIA's, or the library is absent."""
    if not device.startswith("cuda"):
        return None
    import torch

    return gpu_by_uuid(f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}")


def gpu_by_uuid(uuid: str, library: str = LIBRARY) -> Gpu | None:
    """Return a GPU by its own number, which is the same whichever GPUs are visible."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    return Gpu(nvml, handle)
