"""The arguments of a stock call of DistributedDataParallel: which are used, ignored or not supported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lockstep.errors import BadInput, nearest

IGNORED = ("batched_grad_copy",)
"""Arguments that change nothing: small gradients are always copied together."""
UNSUPPORTED = {
    "delay_all_reduce_named_params": "parameters cannot be left out of the buckets",
    "param_to_hook_all_reduce": "parameters cannot be left out of the buckets",
    "mixed_precision": "use torch.autocast in the loop instead",
    "device_mesh": "pass process_group=mesh.get_group() instead",
    "skip_all_reduce_unused_params": "unused parameters are always part of their bucket",
    "bucket_cap_mb_list": "pass one bucket_cap_mb",
}


def check_others(others: Mapping[str, Any]) -> None:
    """Raise for arguments of torch's class that are not supported, unless they are None or False."""
    for name, value in others.items():
        if name in IGNORED:
            continue
        if name not in UNSUPPORTED:
            raise TypeError(
                f"DistributedDataParallel has no argument {name!r}{nearest(name, [*IGNORED, *UNSUPPORTED])}"
            )
        if value is not None and value is not False:
            raise BadInput(f"{name} is not supported by lockstep.nn.DistributedDataParallel: {UNSUPPORTED[name]}")


def check_model(module: nn.Module) -> None:
    """Raise if a model cannot be wrapped."""
    named = dict(module.named_parameters())
    for name, parameter in named.items():
        if isinstance(parameter, UninitializedParameter):
            raise BadInput(f"parameter {name} has no shape yet: run one batch through the model before wrapping it")
    if not any(parameter.requires_grad for parameter in named.values()):
        raise BadInput(
            "the model has no parameter that requires a gradient, so there is nothing to reduce: use it unwrapped"
        )
    kinds = {parameter.device.type for parameter in named.values()}
    if len(kinds) > 1:
        raise BadInput(f"the model's parameters are on {' and '.join(sorted(kinds))}: move them to one kind of device")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise BadInput(
                f"{name or 'the model'} has sparse gradients: use sparse=False, or torch's DDP for this model"
            )


def check_devices(
    module: nn.Module, device_ids: Sequence[int | torch.device] | None, output_device: int | torch.device | None
) -> torch.device | None:
    """Return the device to which inputs are moved, given by `device_ids` as in torch's class; None: they stay."""
    if not device_ids:
        if output_device is not None:
            raise BadInput(f"output_device={output_device} without device_ids: leave it out, outputs are not moved")
        return None
    devices = {parameter.device for parameter in module.parameters()}
    if len(device_ids) > 1 or len(devices) > 1:
        raise BadInput(
            f"device_ids={list(device_ids)} for a model on {', '.join(sorted(map(str, devices)))}: pass the only "
            "device of this process, or leave it out"
        )
    own = next(iter(devices))
    for given in (device_ids[0], output_device):
        device = torch.device(own.type, given) if isinstance(given, int) else torch.device(given) if given else own
        if own.type == "cpu" or device != own:
            raise BadInput(
                f"found device {given} for a model on {own}: move the model there before wrapping it, or leave it out"
            )
    return own


def moved(value: Any, device: torch.device) -> Any:
    """Return nested lists, tuples and dicts with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(part, device) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
