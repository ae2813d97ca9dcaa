"""The training state under the names and shapes of the plain model, gathered from slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.strategies import sliced_optimizer as sliced

if TYPE_CHECKING:
    from lockstep.strategies.exact import ExactWorker

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def optimizer_state(
    workers: Sequence[ExactWorker], combine: Callable[[Tensor], Tensor]
) -> dict[int, dict[str, Tensor]]:
    """Return the optimizer's state per parameter (by position), whole, on every rank.

    `workers` are those of this process; `combine` adds the tables of all processes. Bits are added, not values:
    a value plus zero would turn a negative zero into a positive one.
    """
    first = workers[0]
    if first.replicated:
        states = first.optimizer.state
        return {
            index: {key: value for key, value in states[p].items() if isinstance(value, Tensor)}
            for index, p in enumerate(first.flat.parameters)
            if p in states
        }
    found: dict[int, dict[str, Tensor]] = {}
    names = sliced.state_names(first.optimizer, first.chunks)
    for number, section in enumerate(first.flat.sections):
        for key, per_element in names.get(number, {}).items():
            if not per_element:
                value = sliced.scalar_state(first.optimizer, first.chunks, number, key)
                for slot in section.slots:
                    found.setdefault(slot.index, {})[key] = value.clone()
                continue
            dtype = sliced.state_dtype(first.optimizer, first.chunks, number, key)
            flat = torch.zeros(section.numel, dtype=dtype, device=first.device)
            for worker in workers:
                sliced.flat_state(worker.optimizer, worker.chunks, number, key, flat)
            whole = combine(flat.view(BITS[dtype.itemsize])).view(dtype)
            for slot in section.slots:
                found.setdefault(slot.index, {})[key] = whole[slot.start : slot.stop].view(slot.shape)
    return found


def named_state(worker: ExactWorker, states: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return parameters, buffers and optimizer state by name, as the digest wants them."""
    model = worker.training.model
    tensors: dict[str, Tensor] = {f"parameter/{name}": p for name, p in model.named_parameters()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in model.named_buffers()}
    for index, values in states.items():
        tensors |= {f"optimizer/{worker.flat.names[index]}/{key}": value for key, value in values.items()}
    return tensors


def optimizer_state_dict(worker: ExactWorker, states: dict[int, dict[str, Tensor]]) -> dict[str, object]:
    """Return what the plain optimizer's `state_dict` would hold; it loads there."""
    order = [index for group in worker.members for index in group]
    groups, start = [], 0
    for fields, members in zip(worker.optimizer.param_groups, worker.members, strict=True):
        numbers = list(range(start, start + len(members)))
        groups.append({**{k: v for k, v in fields.items() if k != "params"}, "params": numbers})
        start += len(members)
    state = {place: states[index] for place, index in enumerate(order) if index in states}
    return {"state": state, "param_groups": groups}
