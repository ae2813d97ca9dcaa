"""What a worker of the exact step answers for: its slices of weights and optimizer state; the first also the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from lockstep.state.holdings import Holding, overlaps, state_name, whole
from lockstep.strategies import sliced_optimizer as sliced

if TYPE_CHECKING:
    from lockstep.strategies.exact_step import ExactWorker


def worker_holdings(worker: ExactWorker) -> list[Holding]:
    """Return the part of the plain state that one worker answers for, see [Note: one answer].

    Weights are seen by several workers, or copied to them; each answers for the slice that it updates.
    """
    if not worker.answers:
        return []
    return [
        *_parameters(worker),
        *_rest(worker),
        *(_whole_state(worker) if worker.replicated else _sliced_state(worker)),
    ]


def _parameters(worker: ExactWorker) -> Iterator[Holding]:
    for number, (part, own) in enumerate(zip(worker.parts, worker.slices, strict=True)):
        yield from _cut(worker, number, lambda name: f"parameter/{name}", [(part.start, own)])


def _rest(worker: ExactWorker) -> Iterator[Holding]:
    """Yield frozen parameters and buffers, which all workers have alike: the first answers for them."""
    if worker.exchange.rank == 0:
        model = worker.training.model
        trained = set(worker.layout.names)
        yield from (whole(f"parameter/{name}", p) for name, p in model.named_parameters() if name not in trained)
        yield from (whole(f"buffer/{name}", buffer) for name, buffer in model.named_buffers())


def _whole_state(worker: ExactWorker) -> Iterator[Holding]:
    """Yield the state of an optimizer that updates whole tensors: of one copy of the weights only the first has it."""
    if worker.exchange.rank == 0:
        for name, parameter in zip(worker.layout.names, worker.layout.parameters, strict=True):
            for key, value in worker.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield whole(state_name(name, key), value)


def _sliced_state(worker: ExactWorker) -> Iterator[Holding]:
    for number, keys in sliced.state_names(worker.optimizer, worker.chunks).items():
        for key, per_element in keys.items():
            if per_element:
                runs = sliced.state_runs(worker.optimizer, worker.chunks, number, key)
                yield from _cut(worker, number, partial(state_name, key=key), runs)
            elif worker.exchange.rank == 0:
                value = sliced.scalar_state(worker.optimizer, worker.chunks, number, key)
                for slot in worker.layout.sections[number].slots:
                    yield whole(state_name(worker.layout.names[slot.index], key), value)


def _cut(
    worker: ExactWorker, section: int, label: Callable[[str], str], runs: list[tuple[int, Tensor]]
) -> Iterator[Holding]:
    """Yield what flat tensors (by their first element's position in the section) hold of each tensor of a section."""
    begin, end = runs[0][0], runs[-1][0] + runs[-1][1].numel()
    for slot in worker.layout.sections[section].slots:
        low, high = max(slot.start, begin), min(slot.stop, end)
        empty = slot.start == slot.stop and begin <= slot.start < end
        if low < high or empty:
            parts = tuple(overlaps(low, high, runs))
            yield Holding(label(worker.layout.names[slot.index]), runs[0][1].dtype, slot.shape, low - slot.start, parts)
