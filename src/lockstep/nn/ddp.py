"""DistributedDataParallel: a replacement for torch's class in a stock loop, on any torch.distributed backend.

    forward     1 check that the model is still the one that was wrapped         ddp_checks.py
                2 broadcast rank 0's buffers                                     packed_tensors.py
                3 arm the reducer for the next backward (not in no_sync)
    backward    4 gradients go into buckets, which are reduced meanwhile         reducer.py, buckets.py, reduction.py

After backward `.grad` of every parameter is a view of its bucket, and holds the mean over the ranks.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from lockstep.errors import BadInput
from lockstep.nn.buckets import CAP_MB, FIRST_BYTES, MIB, plan
from lockstep.nn.ddp_arguments import check_devices, check_model, check_others, moved, tensors_in
from lockstep.nn.ddp_checks import WrappedModel, check_same_model, parameter_specs
from lockstep.nn.ddp_join import ShadowHook, count_ranks, highest_rank
from lockstep.nn.missing_gradients import MissingGradients
from lockstep.nn.packed_tensors import PackedTensors, broadcast_once
from lockstep.nn.reducer import Reducer
from lockstep.nn.reduction import choose
from lockstep.torch_compat.distributed import default_group
from lockstep.torch_compat.modules import buffers_of, joins
from lockstep.torch_compat.tensors import disable_dynamo

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN = ("process_group", "_reducer", "_wrapped", "_packed", "_undo", "_buffer_places")
"""Attributes that belong to this process: never copied or pickled, but made again."""


@dataclass(frozen=True, kw_only=True)
class DDPOptions:
    """How gradients are reduced."""

    exact: bool
    """Add in one fixed tree, whatever the backend."""
    find_unused_parameters: bool
    """Count a missing gradient as zero instead of raising an error."""
    static_graph: bool
    """Reduce after backward, so that a parameter may become ready several times."""
    broadcast_buffers: bool
    """Broadcast rank 0's buffers before a forward."""
    bucket_cap_mb: float | None
    """MiB of a bucket; None: 25, and 1 for the first."""


class DistributedDataParallel(nn.Module, Joinable):
    """Keep a model the same on all ranks: gradients are averaged over them during backward.

    Arguments are those of torch's class; docs/ddp.md lists the few that are ignored or not supported. `exact=True` adds
    along one fixed tree, so that results repeat bit for bit on any backend and with any buckets.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        *,
        exact: bool = False,
        forward_sync_buffers: bool | None = None,
        **others: Any,
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        del dim, check_reduction, gradient_as_bucket_view  # ignored: see docs/ddp.md
        check_others(others)
        check_model(module)
        self.module = module
        self.device = next(module.parameters()).device
        self.input_device = check_devices(module, device_ids, output_device)
        given = [value for value in (forward_sync_buffers, broadcast_buffers) if value is not None]
        self.options = DDPOptions(
            exact=exact,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            broadcast_buffers=given[0] if given else True,
            bucket_cap_mb=bucket_cap_mb,
        )
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.divide_by_initial_world_size = True
        group = process_group or default_group()
        if group.size() > 1:
            check_same_model(module, f"{self.options}, init_sync={init_sync}", group, self.device)
        self._start(group)
        if init_sync and group.size() > 1:
            self.broadcast_model(0, buffers=forward_sync_buffers is not None or self.options.broadcast_buffers)

    def _start(self, group: dist.ProcessGroup) -> None:
        """Set up the attributes that belong to this process; no collective."""
        options, module = self.options, self.module
        self.process_group = group
        self._packed: PackedTensors | None = None
        self._wrapped = WrappedModel(module)
        self._buffer_places = [
            (buffers_of(m), n) for m in module.modules() for n, b in buffers_of(m).items() if b is not None
        ]
        named = dict(module.named_parameters())
        like = parameter_specs(named)
        reduction = choose(group, self.device, exact=options.exact)
        cap = int((CAP_MB if options.bucket_cap_mb is None else options.bucket_cap_mb) * MIB)
        first = FIRST_BYTES if options.bucket_cap_mb is None else cap
        self._reducer = Reducer(
            list(named.values()),
            like,
            plan(like, cap_bytes=cap, first_bytes=first, multiple=reduction.multiple) if group.size() > 1 else [],
            reduction,
            MissingGradients(list(named), group, self.device, allowed=options.find_unused_parameters),
            after_backward=options.static_graph,
        )
        # The hooks hold no reference to the wrapper; when it is freed, they are removed.
        self._undo = weakref.finalize(self, self._reducer.detach)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; numbers as in the diagram."""
        if self.input_device is not None:
            args, kwargs = moved(args, self.input_device), moved(kwargs, self.input_device)
        if self.process_group.size() == 1:
            return self.module(*args, **kwargs)
        self._before_forward()
        output = self.module(*args, **kwargs)
        self._after_forward(output)
        return output

    @disable_dynamo
    def _before_forward(self) -> None:
        self._reducer.check()
        self._wrapped.check()  # 1
        joining = joins(self)
        if joining:
            self._notify_join()
        self._sync_buffers(joining=joining, active=True)  # 2
        if joining:
            reduced = torch.is_grad_enabled() and self.require_backward_grad_sync
            count_ranks(self.process_group, self.device, reduced)

    @disable_dynamo
    def _after_forward(self, output: Any) -> None:
        reduced = torch.is_grad_enabled() and self.require_backward_grad_sync
        self.require_forward_param_sync = reduced
        if not torch.is_grad_enabled():
            return
        if not reduced:
            self._reducer.disarm()
            return
        self._reducer.arm()  # 3
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self._reducer.output_hook)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without reducing them; the next forward and backward outside reduce the sum."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients; after a backward that failed half-way some may still be on their way.

        On an accelerator the stream that computes waits for those. On the CPU the next forward waits, as all ranks do.
        """
        if not set_to_none and self.device.type != "cpu":
            self._reducer.forget()
        super().zero_grad(set_to_none)

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Raise: torch's hooks need torch's buckets."""
        raise BadInput(
            "lockstep.nn.DistributedDataParallel does not support communication hooks: use torch's DDP for this model"
        )

    # -- tensors from one rank to the others

    def _sync_buffers(self, *, joining: bool, active: bool) -> None:
        if not (self.require_forward_param_sync and self.options.broadcast_buffers and self._buffer_places):
            return
        tensors = [buffer for table, name in self._buffer_places if (buffer := table.get(name)) is not None]
        if self._packed is None or not self._packed.fits(tensors):
            self._packed = PackedTensors(tensors)
        source = highest_rank(self.process_group, self.device, active) if joining else 0
        self._packed.broadcast(tensors, source, self.process_group)

    def broadcast_model(self, source: int, *, buffers: bool = True) -> None:
        """Broadcast the weights, and the buffers, of the group's rank `source`."""
        tensors: list[Tensor] = [p.detach() for p in self.module.parameters()]
        if buffers:
            tensors += list(self.module.buffers())
        broadcast_once(tensors, source, self.process_group)

    # -- ranks with different numbers of batches: see ddp_join.py

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a context in which ranks may have different numbers of batches."""
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return what a rank without data does."""
        return ShadowHook(self, by_initial_size=kwargs.get("divide_by_initial_world_size", True))

    @property
    def join_device(self) -> torch.device:
        """The device of the collectives of a join."""
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The group of the collectives of a join."""
        return self.process_group

    def _notify_join(self) -> None:
        work: Any = Join.notify_join_context(self)
        self._reducer.join_factor = 1.0
        if work is not None and not self.divide_by_initial_world_size:
            work.wait()
            active = float(work.get_future().value()[0])
            self._reducer.join_factor = self.process_group.size() / active

    def mirror_step(self) -> None:
        """Take part in the collectives of a step of the ranks with data; called by the join's hook."""
        self._sync_buffers(joining=True, active=False)
        self.require_forward_param_sync = count_ranks(self.process_group, self.device, False) > 0
        if self.require_forward_param_sync:
            self._reducer.take_part()

    # -- copies

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.GroupMember.WORLD:
            raise BadInput("only a wrapper over the default process group can be pickled: pickle its .module instead")
        return {key: value for key, value in self.__dict__.items() if key not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._start(default_group())

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(
            {key: copy.deepcopy(value, memo) for key, value in self.__dict__.items() if key not in _OWN}
        )
        copied._start(self.process_group)
        return copied
