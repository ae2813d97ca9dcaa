"""The training state under the names and shapes of the plain model, gathered from slices a window at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lockstep.lanes.flat_layout import Slot, windows
from lockstep.strategies import sliced_optimizer as sliced

if TYPE_CHECKING:
    from lockstep.strategies.exact_step import ExactWorker

# 2-byte numbers travel as bytes: not every backend adds 16-bit integers.
BITS = {1: torch.uint8, 2: torch.uint8, 4: torch.int32, 8: torch.int64}
WINDOW = 1 << 22
"""Elements gathered at a time, unless one tensor has more."""


class Held(NamedTuple):
    """One tensor of the optimizer's state."""

    number: int
    """Of the parameter, in the order of the model."""
    key: str
    """What the optimizer calls it."""
    value: Tensor
    """Whole, in the parameter's shape; or one number."""


class Entry(NamedTuple):
    """What a tensor will be, before it is gathered."""

    name: str
    """As the digest has it: `parameter/...`, `buffer/...` or `optimizer/<parameter>/<key>`."""
    dtype: torch.dtype
    """Of its elements."""
    shape: tuple[int, ...]
    """Of the plain tensor."""


class Part(NamedTuple):
    """What is gathered at once: one key of the parameters in one window of a section."""

    section: int
    key: str
    dtype: torch.dtype
    slots: tuple[Slot, ...]
    per_element: bool


def optimizer_state(workers: Sequence[ExactWorker], combine: Callable[[Tensor], Tensor]) -> Iterator[Held]:
    """Yield the optimizer's state per parameter, whole, on every rank; all ranks go through it together.

    `workers` are those of this process; `combine` adds the tables of all processes. Bits are added, not values:
    a value plus zero would turn a negative zero into a positive one.
    """
    first = workers[0]
    if first.replicated:
        yield from _whole_state(first)
        return
    for part in _parts(first):
        if not part.per_element:
            value = sliced.scalar_state(first.optimizer, first.chunks, part.section, part.key)
            yield from (Held(slot.index, part.key, value.clone()) for slot in part.slots)
            continue
        start = part.slots[0].start
        flat = torch.zeros(part.slots[-1].stop - start, dtype=part.dtype, device=first.device)
        for worker in workers:
            sliced.copy_state(worker.optimizer, worker.chunks, part.section, part.key, flat, start)
        whole = combine(flat.view(BITS[part.dtype.itemsize])).view(part.dtype)
        for slot in part.slots:
            yield Held(slot.index, part.key, whole[slot.start - start : slot.stop - start].view(slot.shape))


def table(worker: ExactWorker) -> list[Entry]:
    """Say what `named_state` will yield on rank 0, in order; asks nobody."""
    model, names = worker.training.model, worker.flat.names
    entries = [Entry(f"parameter/{name}", p.dtype, tuple(p.shape)) for name, p in model.named_parameters()]
    entries += [Entry(f"buffer/{name}", b.dtype, tuple(b.shape)) for name, b in model.named_buffers()]
    if worker.replicated:
        held = list(_whole_state(worker))
        return entries + [Entry(_name(worker, one), one.value.dtype, tuple(one.value.shape)) for one in held]
    return entries + [
        Entry(f"optimizer/{names[slot.index]}/{part.key}", part.dtype, slot.shape if part.per_element else ())
        for part in _parts(worker)
        for slot in part.slots
    ]


def named_state(worker: ExactWorker, held: Iterable[Held]) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, buffers and optimizer state by name, as the digest wants them."""
    model = worker.training.model
    yield from ((f"parameter/{name}", p.detach()) for name, p in model.named_parameters())
    yield from ((f"buffer/{name}", buffer) for name, buffer in model.named_buffers())
    yield from ((_name(worker, one), one.value) for one in held)


def optimizer_state_dict(worker: ExactWorker, held: Iterable[Held]) -> dict[str, object]:
    """Return what the plain optimizer's `state_dict` would hold; it loads there."""
    order = [index for group in worker.members for index in group]
    groups, start = [], 0
    for fields, members in zip(worker.optimizer.param_groups, worker.members, strict=True):
        numbers = list(range(start, start + len(members)))
        groups.append({**{k: v for k, v in fields.items() if k != "params"}, "params": numbers})
        start += len(members)
    states: dict[int, dict[str, Tensor]] = {}
    for one in held:
        states.setdefault(one.number, {})[one.key] = one.value
    state = {place: states[index] for place, index in enumerate(order) if index in states}
    return {"state": state, "param_groups": groups}


def _name(worker: ExactWorker, held: Held) -> str:
    return f"optimizer/{worker.flat.names[held.number]}/{held.key}"


def _whole_state(worker: ExactWorker) -> Iterator[Held]:
    states = worker.optimizer.state
    for index, parameter in enumerate(worker.flat.parameters):
        for key, value in states.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield Held(index, key, value)


def _parts(worker: ExactWorker) -> Iterator[Part]:
    names = sliced.state_names(worker.optimizer, worker.chunks)
    for number, section in enumerate(worker.flat.sections):
        for key, per_element in names.get(number, {}).items():
            dtype = sliced.state_dtype(worker.optimizer, worker.chunks, number, key)
            for slots in windows(section.slots, WINDOW) if per_element else [section.slots]:
                yield Part(number, key, dtype, slots, per_element)
