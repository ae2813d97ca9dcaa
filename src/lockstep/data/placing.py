"""Batches on their devices: the next one is copied there while the current one is computed, and nobody waits.

    host              pins the next batch, starts its copy, gives out the current batch, launches its step
    copying stream    copies the next batch                                                  records an event
    computing stream                        the current step .............................. waits for the event

A copy is not waited for by the host: it reads from pinned memory, on a stream of its own, and the stream that computes
waits for its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.data.loader import Batch, LaneBatch

Placement = Callable[[int], str]
"""The device on which a lane of this process is computed."""


class _Copied(NamedTuple):
    batch: Batch
    tensors: list[Tensor]
    arrived: list[tuple[torch.device, torch.Event]]
    """Of each device, when its copies are done."""
    sources: list[Tensor]
    """Kept until then."""


def placed(source: Iterator[Batch], place: Placement) -> Iterator[Batch]:
    """Yield batches whose tensors are on their devices; an error of the source is raised when its batch is due."""
    copier = _Copier(place)
    ahead = copier.start(source)
    while True:
        current, ahead = ahead, None
        if isinstance(current, BaseException):
            raise current
        if current is None:
            return
        ahead = copier.start(source)
        copier.finish(current)
        yield current.batch


class _Copier:
    def __init__(self, place: Placement) -> None:
        self._place = place
        self._streams: dict[str, torch.Stream] = {}

    def start(self, source: Iterator[Batch]) -> _Copied | BaseException | None:
        """Start to copy the next batch; None if there is none."""
        try:
            batch = next(source, None)
            return None if batch is None else self._copy(batch)
        except Exception as error:
            return error

    def finish(self, copied: _Copied) -> None:
        """Let the streams that compute wait for the copies."""
        for device, event in copied.arrived:
            torch.accelerator.current_stream(device).wait_event(event)
        for tensor in copied.tensors:
            tensor.record_stream(torch.accelerator.current_stream(tensor.device))

    def _copy(self, batch: Batch) -> _Copied:
        tensors: list[Tensor] = []
        sources: list[Tensor] = []
        used: dict[str, torch.Stream] = {}

        def lane_there(lane: LaneBatch) -> LaneBatch:
            device = self._place(lane.lane)
            used[device] = self._stream(device)
            with used[device]:
                return replace(lane, data=_mapped(lane.data, lambda one: there(one, device)))

        def there(tensor: Tensor, device: str) -> Tensor:
            if not tensor.is_cpu:
                return tensor.to(device)
            sources.append(tensor if tensor.is_pinned() else tensor.pin_memory())
            tensors.append(sources[-1].to(device, non_blocking=True))
            return tensors[-1]

        moved = replace(batch, lanes=tuple(map(lane_there, batch.lanes)))
        arrived = [(stream.device, stream.record_event()) for stream in used.values()]
        return _Copied(moved, tensors, arrived, sources)

    def _stream(self, device: str) -> torch.Stream:
        if device not in self._streams:
            self._streams[device] = torch.Stream(device=device)
        return self._streams[device]


def _mapped(data: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch with every tensor moved."""
    if isinstance(data, Tensor):
        return move(data)
    if isinstance(data, Mapping):
        return {key: _mapped(value, move) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        moved = [_mapped(value, move) for value in data]
        return type(data)(*moved) if hasattr(data, "_fields") else type(data)(moved)
    return data
