"""The device that the suites run on: the CPU, or with LOCKSTEP_TEST_DEVICE=pretend the devices of tests/pretend.

`make test-pretend` builds those, and runs the suites that know of devices.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest
import torch.distributed as dist

from lockstep import World

KIND = os.environ.get("LOCKSTEP_TEST_DEVICE", "cpu")
ON_CPU = KIND == "cpu"
COLLECTIVES = "gloo" if ON_CPU else "pccl"
"""The backend of ranks that have weights of their own."""

only_cpu = pytest.mark.skipif(not ON_CPU, reason="of memory and backends that only the CPU has")
"""For what is about the CPU alone."""
only_devices = pytest.mark.skipif(ON_CPU, reason="needs an accelerator: make test-pretend")
"""For what is about accelerators alone."""

Value = TypeVar("Value")


def device_of(rank: int) -> str:
    """Return what a rank of this host computes on."""
    return KIND if ON_CPU else f"{KIND}:{rank}"


def own_device() -> str:
    """Return what this rank computes on."""
    return device_of(dist.get_rank())


def backend_of(name: str) -> str:
    """Return the backend that stands for this one here: devices have one, as GPUs have."""
    return name if ON_CPU or not name else COLLECTIVES


def alone() -> World:
    """Return a world of one rank."""
    return World.alone(device=device_of(0), threads=1)


def here(on_cpu: Value, on_devices: Value) -> Value:
    """Return what is tested on this device."""
    return on_cpu if ON_CPU else on_devices
