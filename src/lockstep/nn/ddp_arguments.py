"""What a stock call of DistributedDataParallel passes: taken, ignored where it has no meaning here, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lockstep.errors import BadInput, nearest

IGNORED = ("batched_grad_copy",)
"""Ours always copies small gradients together."""
REFUSED = {
    "delay_all_reduce_named_params": "parameters cannot be left out of the buckets",
    "param_to_hook_all_reduce": "parameters cannot be left out of the buckets",
    "mixed_precision": "use torch.autocast in the loop instead",
    "device_mesh": "pass process_group=mesh.get_group() instead",
    "skip_all_reduce_unused_params": "unused parameters are part of their bucket",
    "bucket_cap_mb_list": "pass one bucket_cap_mb",
}


def check_others(others: Mapping[str, Any]) -> None:
    """Refuse arguments of torch's that would have another meaning here, unless they ask for nothing."""
    for name, value in others.items():
        if name in IGNORED:
            continue
        if name not in REFUSED:
            raise TypeError(f"DistributedDataParallel has no argument {name!r}{nearest(name, [*IGNORED, *REFUSED])}")
        if value is not None and value is not False:
            raise BadInput(f"{name} is not supported by lockstep.nn.DistributedDataParallel: {REFUSED[name]}")


def check_model(module: nn.Module) -> None:
    """Refuse a model that cannot be wrapped."""
    named = dict(module.named_parameters())
    for name, parameter in named.items():
        if isinstance(parameter, UninitializedParameter):
            raise BadInput(f"parameter {name} has no shape yet: run one batch through the model before wrapping it")
    if not any(parameter.requires_grad for parameter in named.values()):
        raise BadInput(
            "the model has no parameter that requires a gradient: there is nothing to reduce, use it as it is"
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
    """Return the device that inputs are moved to, as torch's class does with `device_ids`; None: they are not moved."""
    if not device_ids:
        if output_device is not None:
            raise BadInput(
                f"output_device={output_device} without device_ids: leave it out, outputs stay where they are"
            )
        return None
    devices = {parameter.device for parameter in module.parameters()}
    if len(device_ids) > 1 or len(devices) > 1:
        raise BadInput(
            f"device_ids={list(device_ids)} for a model on {', '.join(sorted(map(str, devices)))}: pass the one "
            "device of this process, or leave it out"
        )
    own = next(iter(devices))
    for said in (device_ids[0], output_device):
        asked = torch.device(own.type, said) if isinstance(said, int) else torch.device(said) if said else own
        if own.type == "cpu" or asked != own:
            raise BadInput(f"device {said} was given for a model on {own}: move the model first, or leave it out")
    return own


def moved(value: Any, device: torch.device) -> Any:
    """Return a nest of lists, tuples and dicts with its tensors on a device."""
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
    """Go through the tensors in a nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
