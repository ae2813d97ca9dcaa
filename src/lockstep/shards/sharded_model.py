"""A model whose large weights are with their owners: fetched for the calls that use them, gradients sent to owners.

    a lane      begin          the first block is fetched
                forward        a module's call begins: its block is here, the next is on its way; it ends: dropped
                begin_backward
                backward       what autograd saved of a weight is asked for: its block is fetched again; all gradients
                               of a block are there: it is dropped, and they are sent
                end            a missing gradient counts as zero; all workers have sent the same blocks
    a step      sums           over all lanes, of this worker's elements

The weights that belong to no block are with every worker; their gradients are sent when a lane ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.shards.block_weights import BlockWeights
from lockstep.shards.blocks import WeightBlock
from lockstep.shards.fetching import Fetcher
from lockstep.shards.sending import GradientSender
from lockstep.torch_compat.tensors import storage_id


class _SavedView(NamedTuple):
    """What autograd keeps of a weight in place of a view of it."""

    block: int
    flat: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class ShardedModel:
    """The blocks of a model, in the order of their definition; the last has what belongs to no block."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[WeightBlock],
        weights: Sequence[BlockWeights],
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        *,
        lanes: int,
        groups: tuple[Group, Group],
    ) -> None:
        """Watch the model's calls; `groups` are two of the same workers, for weights and for gradients."""
        self._weights, self._parameters, self._names = weights, parameters, names
        self._rest = len(blocks)
        self._lanes, self._workers = lanes, groups[0].size
        self.fetcher = Fetcher(weights, groups[0])
        parts = {number: ranges for one in weights for number, ranges in one.parts.items()}
        self.sender = GradientSender(groups[1], lanes, parts)
        self._by_storage = {
            storage_id(flat): (block, flat) for block in range(self._rest) for flat in weights[block].flats.values()
        }
        self._places = {
            slot.index: (number, slot)
            for one in weights
            for number, section in one.sections.items()
            for slot in section.slots
        }
        """Of each parameter, its section and where it lies there."""
        self._forward_order: list[int] | None = None
        self._backward_order: list[int] | None = None
        self._send_order: list[int] = []
        self._kept: int | None = None
        """The block that forward ends and backward begins with."""
        self._late: set[int] = set()
        """Blocks with gradients that come in pieces: they are taken when a lane ends."""
        self._in_backward = self.whole = False
        self._turn = 0
        self._fired: Counter[int] = Counter()
        self._filling: dict[int, dict[int, Tensor]] = {}
        """The gradients of blocks that are not complete, by section."""
        self._missing: list[set[int]] = []
        """Of each block, the parameters whose gradients are still to come."""
        self._complete: list[int] = []
        self._noted: list[int] = []
        self._forward_noted: list[int] = []
        self._sent = 0
        self._watch(model, blocks)
        self.fetcher.fetch(self._rest)

    def _watch(self, model: nn.Module, blocks: Sequence[WeightBlock]) -> None:
        for number, block in enumerate(blocks):
            module = model.get_submodule(block.module)
            module.register_forward_pre_hook(self._entering(number), prepend=True)
            module.register_forward_hook(self._leaving(number), always_call=True)
            for index in self._weights[number].indices:
                self._parameters[index].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._catcher(number, index)
                )

    def begin(self, turn: int) -> None:
        """Begin the lane of one turn."""
        self.release_all()
        self._turn, self._in_backward, self._sent = turn, False, 0
        self._filling, self._complete = {}, []
        self._missing = [set(one.indices) for one in self._weights]
        self._fired.clear()
        self._begin_rest()
        self.fetcher.start(self._forward_order, "forward")

    def _begin_rest(self) -> None:
        """Let backward itself add the gradients of the weights that are always here."""
        for number, flat in self._rooms(self._rest).items():
            flat.zero_()
            for slot in self._weights[self._rest].sections[number].slots:
                self._parameters[slot.index].grad = flat[slot.start : slot.stop].view(slot.shape)

    def saving(self) -> AbstractContextManager[Any]:
        """Have autograd keep no views of weights that will be dropped."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def begin_backward(self) -> None:
        """End forward; do nothing if that was done before."""
        if not self._in_backward:
            self._in_backward = True
            self.fetcher.finish()
            if self._forward_order is None:
                self._forward_noted = list(self.fetcher.noted)
            kept = [] if self._kept is None else [self._kept]
            self.fetcher.release_all(but=[*kept, self._rest])
            self.fetcher.start(self._backward_order, "backward")

    def end(self) -> None:
        """End a lane: send what was not sent, and let the others have what they need."""
        self.begin_backward()
        self.fetcher.finish()
        self.fetcher.release_all(but=[self._rest])
        for block in range(self._rest):
            for index in sorted(self._missing[block]):
                self._collect(block, index, self._parameters[index].grad)
                self._parameters[index].grad = None
        for index in self._weights[self._rest].indices:
            self._parameters[index].grad = None
        self._complete.append(self._rest)
        self._send_complete()

    def note_orders(self, run: Callable[[], Tensor]) -> None:
        """Run one lane, the same on all workers, forward and backward, and note in which order it needs the blocks."""
        self.begin(0)
        with self.saving():
            total = run()
        self.begin_backward()
        torch.autograd.backward(total)
        needed = list(self.fetcher.noted)
        self.fetcher.finish()
        self.fetcher.release_all(but=[self._rest])
        forward = self._forward_noted
        if needed and forward and needed[0] == forward[-1]:
            self._kept = needed.pop(0)
        self._forward_order, self._backward_order = forward, needed
        early = [block for block in self._noted if block not in self._late]
        self._send_order = [*early, *(block for block in range(self._rest) if block not in early), self._rest]
        self._filling = {}
        for parameter in self._parameters:
            parameter.grad = None

    def fetch_all(self) -> None:
        """Have the whole model here until `release_all` or the next lane; all workers call this together."""
        if not self.whole:
            for block in range(self._rest):
                self.fetcher.fetch(block)
            self.whole = True

    def release_all(self) -> None:
        """Drop what `fetch_all` got."""
        self.fetcher.release_all(but=[self._rest])
        self.whole = False

    def renew(self) -> None:
        """Get the present values of the weights that are always here, after all workers have updated theirs."""
        self.fetcher.fetch(self._rest)

    def take_sum(self, section: int) -> Tensor:
        """Return the sum over all lanes of this worker's elements of a section's gradient."""
        return self.sender.sums[section].take()

    def give_back(self, section: int, total: Tensor) -> None:
        """Return a sum's memory."""
        self.sender.sums[section].give_back(total)

    def _entering(self, block: int) -> Callable[..., None]:
        def enter(_module: nn.Module, _arguments: Any) -> None:
            self.fetcher.need(block)

        return enter

    def _leaving(self, block: int) -> Callable[..., None]:
        def leave(_module: nn.Module, _arguments: Any, _output: Any) -> None:
            if not (self._in_backward or self.whole or block == self._kept):
                self.fetcher.release(block)

        return leave

    def _pack(self, tensor: Tensor) -> Tensor | _SavedView:
        if tensor.layout is not torch.strided:
            return tensor
        block, flat = self._by_storage.get(storage_id(tensor), (-1, tensor))
        if block < 0:
            return tensor
        if tensor.dtype != flat.dtype:
            return tensor.clone()
        return _SavedView(block, flat, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, saved: Tensor | _SavedView) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        self.fetcher.need(saved.block)
        return saved.flat.as_strided(saved.size, saved.stride, saved.offset)

    def _catcher(self, block: int, index: int) -> Callable[[Tensor], None]:
        def catch(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            if self._forward_order is None:
                self._note_gradient(block, index)
                parameter.grad = None
            elif block not in self._late:
                parameter.grad = None
                self._collect(block, index, gradient)

        return catch

    def _note_gradient(self, block: int, index: int) -> None:
        self._fired[index] += 1
        if self._fired[index] > 1:
            self._late.add(block)
        self._missing[block].discard(index)
        if not self._missing[block]:
            self.fetcher.release(block)
            if block not in self._noted:
                self._noted.append(block)

    def _collect(self, block: int, index: int, gradient: Tensor | None) -> None:
        """Take one gradient of a block; when it is the last, drop the block and send its gradients."""
        if index not in self._missing[block]:
            raise BadInput(
                f"{self._names[index]} got its gradient in several pieces, but in one piece before: pass "
                "use_reentrant=False to torch.utils.checkpoint in the model"
            )
        if gradient is not None and gradient.is_sparse:
            raise BadInput(f"{self._names[index]} has a sparse gradient: use sparse=False in its embedding")
        rooms = self._filling.get(block) or self._rooms(block)
        number, slot = self._places[index]
        target = rooms[number][slot.start : slot.stop].view(slot.shape)
        target.zero_() if gradient is None else target.copy_(gradient)
        self._missing[block].remove(index)
        if not self._missing[block]:
            self.fetcher.release(block)
            self._complete.append(block)
            self._send_complete()

    def _rooms(self, block: int) -> dict[int, Tensor]:
        """Return memory for a block's gradients, with zeros between them."""
        rooms = self._filling[block] = {
            number: self.sender.room(section.numel, self._weights[block].flats[number])
            for number, section in self._weights[block].sections.items()
        }
        for number, section in self._weights[block].sections.items():
            ends = [0, *(slot.stop for slot in section.slots)]
            starts = [*(slot.start for slot in section.slots), section.numel]
            for end, start in zip(ends, starts, strict=True):
                rooms[number][end:start].zero_()
        return rooms

    def _send_complete(self) -> None:
        """Send the complete blocks that are next; all workers send them in one order."""
        first = self._turn * self._workers
        lanes = [lane if lane < self._lanes else None for lane in range(first, first + self._workers)]
        while self._sent < len(self._send_order) and self._send_order[self._sent] in self._complete:
            block = self._send_order[self._sent]
            self._sent += 1
            self.sender.send(lanes, self._filling.pop(block))
