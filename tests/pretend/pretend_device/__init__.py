"""An accelerator that is none: several devices in the memory of the host, which the CPU cannot touch.

torch loads it in every process, by its entry point. PRETEND_DEVICES says how many devices there are (4), PRETEND_MEMORY
how many bytes each has (1 GiB).
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

NAME = "pretend"


def load() -> None:
    """Register the devices with torch; torch calls this at the end of its own import."""
    from pretend_device import _device

    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(_device))
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    _register_collectives()


def counts() -> dict[str, int]:
    """Return how often the host waited, and what was copied, since the process began."""
    from pretend_device import _device

    return dict(_device.counts())


def lose(device: int) -> None:
    """Let a device fail from now on."""
    from pretend_device import _device

    _device.lose(device)


def nap(seconds: float) -> None:
    """Keep the current stream busy for so long; the host goes on."""
    from pretend_device import _device

    _device.nap(seconds)


def _module(device: Any) -> types.ModuleType:
    """Return what torch expects as `torch.pretend`."""
    module = types.ModuleType(f"torch.{NAME}")
    generators = [device.default_generator(index) for index in range(device.device_count())]

    def generator(which: Any = None) -> torch.Generator:
        index = which if isinstance(which, int) else torch.device(which or NAME).index
        return generators[device.current_device() if index is None else index]

    def manual_seed_all(seed: int) -> None:
        for one in generators:
            one.manual_seed(seed)

    names = {
        "is_available": lambda: device.device_count() > 0,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": device.in_bad_fork,
        "device_count": device.device_count,
        "current_device": device.current_device,
        "set_device": lambda which: device.set_device(torch.device(which).index if isinstance(which, str) else which),
        "synchronize": lambda which=None: torch.accelerator.synchronize(which),
        "default_generators": generators,
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "manual_seed_all": manual_seed_all,
        "get_rng_state": lambda which=None: generator(which).get_state(),
        "set_rng_state": lambda state, which=None: generator(which).set_state(state),
        "Stream": lambda priority=0: torch.Stream(device=NAME, priority=priority),
        "Event": lambda enable_timing=False: torch.Event(device=NAME, enable_timing=enable_timing),
        "current_stream": lambda which=None: torch.accelerator.current_stream(which),
        "stream": lambda stream: stream,  # a stream is the context in which it is the current one
        "get_amp_supported_dtype": lambda: [torch.bfloat16],
        "device": lambda which: torch.accelerator.device_index(which if isinstance(which, int) else which.index),
        "get_device_name": lambda which=None: "pretend device",
    }
    for name, value in names.items():
        setattr(module, name, value)
    sys.modules[module.__name__] = module
    return module


def _register_collectives() -> None:
    import torch.distributed as dist

    def create(options: Any, backend_options: Any = None) -> Any:
        from pretend_device.collectives import create

        return create(options, backend_options)

    dist.Backend.register_backend("pccl", create, extended_api=True, devices=[NAME])
