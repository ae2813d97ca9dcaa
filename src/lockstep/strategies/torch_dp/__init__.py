"""`torch-dp`: PyTorch's nn.DataParallel on several CUDA devices, for comparison."""

from __future__ import annotations

from pathlib import Path

from lockstep.registry import StrategyDescription

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""What the drivers of CUDA devices (NVIDIA's, AMD's, those of WSL) leave where there is one."""


def no_cuda(device: str) -> str:
    """Say why nn.DataParallel cannot run on a device that is not a CUDA one."""
    return (
        f"strategy torch-dp is nn.DataParallel, which copies the model to several CUDA devices in every step, and here "
        f"{device}: without them it would train on one worker and not say so. Use torch-ddp, dp or ddp"
    )


def unavailable() -> str | None:
    """Say why it cannot be used here, as far as that is known without torch."""
    return None if any(map(Path.exists, map(Path, DRIVERS))) else no_cuda("is none")


STRATEGY = StrategyDescription(
    name="torch-dp",
    help="PyTorch's nn.DataParallel: one process, a CUDA device per worker",
    implementation="lockstep.strategies.torch_dp.strategy:TorchDP",
    limits="lockstep.strategies.torch_dp.strategy:limits",
    unavailable=unavailable,
    one_process=True,
    least_workers=2,
)
