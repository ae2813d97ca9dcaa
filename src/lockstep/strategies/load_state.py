"""The reverse of `worker_state`: a whole training state goes into flat weights, buffers and slices, whoever wrote it.

Every worker puts the same bytes into what it sees. Where weights are shared they are written once per worker, always
with the same values, so nobody needs to know who shares what with whom.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.lanes.flat_layout import TensorSlot
from lockstep.strategies import sliced_optimizer as sliced
from lockstep.strategies.base import Tuned

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.strategies.exact_step import ExactWorker

SCALARS = frozenset({"step", "mu_product"})
"""State of the elementwise optimizers that is one number, not one per element."""


def tuned(worker: ExactWorker) -> Tuned:
    """Return a worker's optimizer with the names of what it updates."""
    names = worker.layout.names
    whole = dict(zip(names, worker.layout.parameters, strict=True)) if worker.replicated else {}
    members = [[names[index] for index in group] for group in worker.members]
    together = (
        [] if worker.replicated else [[names[slot.index] for slot in one.slots] for one in worker.layout.sections]
    )
    return Tuned(worker.optimizer, worker.schedule, members, whole, together)


def load_plain(model: nn.Module, optimizer: Optimizer, pieces: Iterable[tuple[str, Tensor]]) -> None:
    """Put a whole state into a plain model and optimizer, tensor by tensor as it comes."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    near = _near(optimizer)
    optimizer.state.clear()
    for name, value in pieces:
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            owner, _, key = rest.rpartition("/")
            optimizer.state[parameters[owner]][key] = _placed(parameters[owner], key, value, near)
        else:
            _put_value(parameters[rest] if kind == "parameter" else buffers[rest], value)


def check_slices(worker: ExactWorker, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:
    """Refuse optimizer state (shapes by key and parameter) that cannot be cut into slices."""
    if worker.replicated:
        return
    for section in worker.layout.sections:
        shapes = {worker.layout.names[slot.index]: slot.shape for slot in section.slots}
        for key, owners in held.items():
            present = {name: owners[name] for name in shapes if name in owners}
            wanted = dict.fromkeys(shapes, ()) if key in SCALARS else shapes
            if present and present != wanted:
                name = next(name for name in shapes if present.get(name) != wanted[name])
                raise BadInput(
                    f"{where} has optimizer state {key!r} that this strategy cannot keep in slices: of {name} it is "
                    f"{present.get(name, 'absent')}, not {wanted[name]}. Load it with the strategy that wrote it"
                )


def load_workers(workers: Sequence[ExactWorker], pieces: Iterable[tuple[str, Tensor]]) -> None:
    """Put a whole state into the workers of this process, tensor by tensor as it comes."""
    slices = {worker: _Slices(worker) for worker in workers}
    for worker in workers:
        worker.optimizer.state.clear()
    for name, value in pieces:
        kind, _, rest = name.partition("/")
        owner, _, key = rest.rpartition("/")
        for worker in workers:
            model = worker.training.model
            if kind == "parameter":
                worker.put_parameter(rest, value)
            elif kind == "buffer":
                _put_value(model.get_buffer(rest), value)
            elif worker.replicated:
                parameter = model.get_parameter(owner)
                placed = _placed(parameter, key, value.clone(), slices[worker].near)
                worker.optimizer.state[parameter][key] = placed
            else:
                slices[worker].put(owner, key, value)
    for worker in workers:
        worker.layout.buffers.settle()


class _Slices:
    """A worker's chunks by section, to find those that hold a part of a parameter."""

    def __init__(self, worker: ExactWorker) -> None:
        self.near = _near(worker.optimizer)
        self._state = worker.optimizer.state
        self._chunks: list[list[sliced.Chunk]] = [[] for _ in worker.layout.sections]
        for chunk in worker.chunks:
            self._chunks[chunk.section].append(chunk)
        names = worker.layout.names
        self._places: dict[str, tuple[int, TensorSlot]] = {
            names[slot.index]: (number, slot)
            for number, section in enumerate(worker.layout.sections)
            for slot in section.slots
        }

    def put(self, owner: str, key: str, value: Tensor) -> None:
        """Set the part of one state tensor that lies in this worker's chunks."""
        number, slot = self._places[owner]
        chunks = self._chunks[number]
        if not chunks:  # another worker updates all of it
            return
        known: Tensor | None = self._state[chunks[0].weight].get(key)
        if key in SCALARS:  # the same for all of a section: see check_counters
            for chunk in chunks if known is None else ():
                self._state[chunk.weight][key] = _placed(chunk.weight, key, value.clone(), self.near)
            return
        for chunk in chunks if known is None else ():
            # zeros: the gaps between tensors must stay zero
            self._state[chunk.weight][key] = torch.zeros_like(chunk.weight, dtype=value.dtype, requires_grad=False)
        first = max(0, bisect_right(chunks, slot.start, key=lambda chunk: chunk.start) - 1)
        for chunk in itertools.takewhile(lambda chunk: chunk.start < slot.stop, chunks[first:]):
            sliced.copy_state(chunk, slot.start, value.flatten(), self._state[chunk.weight][key])


def _put_value(place: Tensor, value: Tensor) -> None:
    """Copy into a parameter or buffer: it stays where it is, a view of flat weights."""
    with torch.no_grad():
        place.copy_(value)


def _near(optimizer: Optimizer) -> set[int]:
    """Return the parameters (by id) whose counters the optimizer keeps beside them, not on the CPU."""
    groups = [group for group in optimizer.param_groups if group.get("capturable") or group.get("fused")]
    return {id(parameter) for group in groups for parameter in group["params"]}


def _placed(parameter: nn.Parameter, key: str, value: Tensor, near: set[int]) -> Tensor:
    """Return a state tensor where the optimizer wants it."""
    return value.cpu() if key in SCALARS and id(parameter) not in near else value.to(parameter.device)
