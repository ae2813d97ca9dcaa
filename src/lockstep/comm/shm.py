"""The `shm` backend: a torch.distributed process group whose ranks share one segment of memory."""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from lockstep.comm import bootstrap, rank_tree, small, sparse, tensors
from lockstep.comm import collectives as run
from lockstep.comm.process_group import SegmentGroup
from lockstep.comm.segment_layout import SMALL_BYTES
from lockstep.comm.wire import OPS, Call, CollectiveKind
from lockstep.comm.work import DoneWork
from lockstep.errors import BadInput
from lockstep.torch_compat.distributed import AllgatherOptions
from lockstep.torch_compat.process_group import with_former_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from torch import Tensor

    from lockstep.comm.sync import Deadline
    from lockstep.comm.work import Work

    _Small = Callable[[Tensor, Any, Callable[[], Deadline]], None]

_OURS: Final = 2
"""References to a Work that nobody but its group has: the attribute, and the argument of getrefcount."""

# Options are Any: their classes are in torch's private module, and some differ between its versions.
# Overrides ignore mypy's check of the base: torch's stubs list overloads that are never called on a subclass.


def _operator(op: Any) -> int:
    if op == dist.ReduceOp.SUM:  # one call into torch; taking the code out takes four
        return 0
    code = int(getattr(op, "op", op).value)
    if code >= len(OPS):
        raise BadInput(
            f'backend "shm" has the reductions {", ".join(OPS)}, found {op}: scale the tensor and use sum instead'
        )
    return code


@with_former_names
class ShmGroup(SegmentGroup):
    """A process group over shared memory; all its methods are those of torch.distributed.ProcessGroup."""

    def allreduce(self, tensor_list: list[Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Combine a tensor over all ranks, in place."""
        if opts is not None and len(tensor_list) == 1 and small.fits(tensor_list[0]):
            op = _operator(opts.reduceOp)
            if self._take_fast_path(opts):
                return self._run_fast_path(self._small.all_reduce, tensor_list[0], op, opts, tensor_list)
        return self._reduce(tensor_list, opts or dist.AllreduceOptions(), CollectiveKind.all_reduce, -1)

    def _take_fast_path(self, opts: Any) -> bool:
        """Return whether a call may take the fast path, see [Note: the fast path]; if so, the turn is taken."""
        if opts.asyncOp or self._broken is not None:
            return False
        self._check_process()
        return self._operations.take_turn()

    def _done(self, result: list[Tensor]) -> Work:
        """Return a Work that is done: the last one again if nothing else refers to it, because a new one is slow."""
        if getrefcount(self._last) > _OURS:
            self._last = DoneWork(result)
        else:
            self._last.hold(result)
        return self._last

    def _run_fast_path(
        self, collective: _Small, tensor: Tensor, argument: Any, opts: Any, result: list[Tensor]
    ) -> Work:
        """Run a small collective with its operator or addresses in the turn that was taken, and release the turn."""
        try:
            collective(tensor, argument, lambda: self._deadline(opts))
        except BaseException as error:
            self._after(error)
            raise
        finally:
            self._operations.release_turn()
        return self._done(result)

    def allreduce_coalesced(self, tensor_list: list[Tensor], opts: Any = None) -> Work:
        """Combine several tensors over all ranks, in place."""
        return self._reduce(tensor_list, opts or dist.AllreduceCoalescedOptions(), CollectiveKind.all_reduce, -1)

    def reduce(self, tensor_list: list[Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Combine a tensor over all ranks on the root."""
        return self._reduce(tensor_list, opts, CollectiveKind.reduce, opts.rootRank)

    def _reduce(self, tensor_list: list[Tensor], opts: Any, kind: CollectiveKind, root: int) -> Work:
        op = _operator(opts.reduceOp)
        if kind is CollectiveKind.all_reduce and any(t.layout is torch.sparse_coo for t in tensor_list):
            return self._issue(opts, lambda deadline: self._sparse(tensor_list, op, deadline), tensor_list)
        tensors.check_cpu(tensor_list)
        if root in (-1, self._rank):
            tensors.check_written(tensor_list)
        for tensor in tensor_list:
            rank_tree.check(op, tensor.dtype)

        def operation(deadline: Deadline) -> None:
            for part, tensor in enumerate(tensor_list):
                row = tensors.flat(tensor)
                call = Call(kind, row.numel(), row.dtype, op, root, part)
                if row.nbytes > SMALL_BYTES:
                    self._large.all_reduce(row, call, deadline)
                else:
                    run.small_all_reduce(self._outboxes, row, call, deadline)
                if row is not tensor and root in (-1, self._rank):
                    tensors.put_back(tensor, row)

        return self._issue(opts, operation, tensor_list)

    def _sparse(self, tensor_list: list[Tensor], op: int, deadline: Deadline) -> None:
        for tensor in tensor_list:
            sparse.all_reduce(self._outboxes, tensor, op, deadline)

    def broadcast(self, tensor_list: list[Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Copy the root's tensor to all ranks."""
        tensors.check_cpu(tensor_list)
        root = opts.rootRank
        if self._rank != root:
            tensors.check_written(tensor_list)

        def operation(deadline: Deadline) -> None:
            for part, tensor in enumerate(tensor_list):
                row = tensors.flat(tensor)
                call = Call(CollectiveKind.broadcast, row.numel(), row.dtype, root=root, part=part)
                run.broadcast(self._outboxes, tensors.span(row), call, deadline)
                if self._rank != root:
                    tensors.put_back(tensor, row)

        return self._issue(opts, operation, tensor_list)

    def allgather(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        """Collect every rank's tensor on every rank."""
        opts = opts or AllgatherOptions()
        return self._gather(output_lists, input_list, opts, CollectiveKind.all_gather, -1)

    def allgather_coalesced(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None) -> Work:
        """Collect several tensors of every rank on every rank; the lists are by rank, then by tensor."""
        by_tensor = [list(column) for column in zip(*output_lists, strict=True)]
        return self.allgather(by_tensor, input_list, opts)

    def gather(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any) -> Work:  # type: ignore[override]
        """Collect every rank's tensor on the root."""
        if self._rank != opts.rootRank:
            output_lists = [[] for _ in input_list]
        return self._gather(output_lists, input_list, opts, CollectiveKind.gather, opts.rootRank)

    def _gather(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any, kind: CollectiveKind, root: int
    ) -> Work:
        for outputs, source in zip(output_lists, input_list, strict=True):
            tensors.check_cpu([source, *outputs])
            if root in (-1, self._rank):
                tensors.check_written(outputs)
                tensors.check_list(outputs, source, self._size, f"the output of {kind.name}")

        def operation(deadline: Deadline) -> None:
            for part, (outputs, source) in enumerate(zip(output_lists, input_list, strict=True)):
                row, rows = tensors.flat(source), [tensors.flat(t) for t in outputs]
                call = Call(kind, row.numel(), row.dtype, root=root, part=part)
                run.all_gather(self._outboxes, tensors.span(row), [tensors.span(t) for t in rows], call, deadline)
                for output, result in zip(outputs, rows, strict=True):
                    tensors.put_back(output, result)

        return self._issue(opts, operation, [t for outputs in output_lists for t in outputs])

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        """Collect every rank's tensor in one tensor on every rank."""
        size = source.numel()
        alike = output.numel() == size * self._size and output.dtype == source.dtype
        if opts is not None and alike and small.fits(source) and tensors.plain(output) and self._take_fast_path(opts):
            start, step = output.data_ptr(), source.nbytes
            addresses = [start + r * step for r in range(self._size)]
            return self._run_fast_path(self._small.all_gather, source, addresses, opts, [output])
        return self.all_gather_single_coalesced([output], [source], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Collect several tensors of every rank, each in one tensor."""
        opts = opts or AllgatherOptions()
        tensors.check_cpu([*outputs, *inputs])
        tensors.check_written(outputs)
        for output, source in zip(outputs, inputs, strict=True):
            if output.numel() != source.numel() * self._size or output.dtype != source.dtype:
                raise BadInput(
                    f"all_gather: the output has {output.numel()} x {output.dtype}, expected {self._size} times the "
                    f"input of {source.numel()} x {source.dtype}"
                )

        def operation(deadline: Deadline) -> None:
            for part, (output, source) in enumerate(zip(outputs, inputs, strict=True)):
                row, result = tensors.flat(source), tensors.flat(output)
                call = Call(CollectiveKind.all_gather, row.numel(), row.dtype, part=part)
                address, size = tensors.span(row)
                start = result.data_ptr()
                spans = [(start + r * size, size) for r in range(self._size)]
                run.all_gather(self._outboxes, (address, size), spans, call, deadline)
                tensors.put_back(output, result)

        return self._issue(opts, operation, outputs)

    def scatter(self, output_list: list[Tensor], input_lists: list[list[Tensor]], opts: Any) -> Work:  # type: ignore[override]
        """Give every rank its tensor of the root's list."""
        output, root = output_list[0], opts.rootRank
        inputs = input_lists[0] if self._rank == root else []
        tensors.check_cpu([output, *inputs])
        tensors.check_written([output])
        if self._rank == root:
            tensors.check_list(inputs, output, self._size, "the input of scatter")

        def operation(deadline: Deadline) -> None:
            row, rows = tensors.flat(output), [tensors.flat(t) for t in inputs]
            call = Call(CollectiveKind.scatter, row.numel(), row.dtype, root=root)
            run.scatter(self._outboxes, [tensors.span(t) for t in rows], tensors.span(row), call, deadline)
            tensors.put_back(output, row)

        return self._issue(opts, operation, output_list)

    def reduce_scatter(self, output_list: list[Tensor], input_lists: list[list[Tensor]], opts: Any = None) -> Work:  # type: ignore[override]
        """Combine a list of tensors over all ranks; rank r gets the r-th result."""
        opts = opts or dist.ReduceScatterOptions()
        for output, inputs in zip(output_list, input_lists, strict=True):
            tensors.check_cpu([output, *inputs])
            tensors.check_written([output])
            tensors.check_list(inputs, output, self._size, "the input of reduce_scatter")
        op = _operator(opts.reduceOp)

        def operation(deadline: Deadline) -> None:
            for part, (output, inputs) in enumerate(zip(output_list, input_lists, strict=True)):
                self._reduce_scatter(output, [tensors.flat(t) for t in inputs], op, part, deadline)

        return self._issue(opts, operation, output_list)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        """Combine a tensor over all ranks; rank r gets the r-th part of the result."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Combine several tensors over all ranks; rank r gets the r-th part of each."""
        opts = opts or dist.ReduceScatterOptions()
        tensors.check_cpu([*outputs, *inputs])
        tensors.check_written(outputs)
        op = _operator(opts.reduceOp)
        for output, source in zip(outputs, inputs, strict=True):
            if source.numel() != output.numel() * self._size or output.dtype != source.dtype:
                raise BadInput(
                    f"reduce_scatter: the input has {source.numel()} x {source.dtype}, expected {self._size} times the "
                    f"output of {output.numel()} x {output.dtype}"
                )

        def operation(deadline: Deadline) -> None:
            for part, (output, source) in enumerate(zip(outputs, inputs, strict=True)):
                rows = tensors.pieces(tensors.flat(source), self._size, "the input of reduce_scatter")
                self._reduce_scatter(output, rows, op, part, deadline)

        return self._issue(opts, operation, outputs)

    def _reduce_scatter(self, output: Tensor, rows: list[Tensor], op: int, part: int, deadline: Deadline) -> None:
        rank_tree.check(op, output.dtype)
        row = tensors.flat(output)
        call = Call(CollectiveKind.reduce_scatter, row.numel(), row.dtype, op, part=part)
        run.reduce_scatter(self._outboxes, rows, row, call, deadline)
        tensors.put_back(output, row)

    def alltoall(self, output_list: list[Tensor], input_list: list[Tensor], opts: Any = None) -> Work:
        """Send the r-th tensor of the list to rank r."""
        return self._all_to_all(output_list, input_list, opts or dist.AllToAllOptions())

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Send the r-th part of a tensor, cut along its first dimension, to rank r."""
        opts = opts or dist.AllToAllOptions()
        tensors.check_cpu([output, source])
        tensors.check_written([output])
        row = tensors.flat(output)
        rows_out, rows_in = (t.shape[0] if t.dim() else 1 for t in (output, source))
        outputs = tensors.split(row, rows_out, output_split_sizes, self._size, "the output of all_to_all_single")
        inputs = tensors.split(
            tensors.flat(source), rows_in, input_split_sizes, self._size, "the input of all_to_all_single"
        )
        return self._all_to_all(outputs, inputs, opts, lambda: tensors.put_back(output, row), [output])

    def _all_to_all(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: Any,
        after: Callable[[], None] = lambda: None,
        result: list[Tensor] | None = None,
    ) -> Work:
        tensors.check_cpu([*outputs, *inputs])
        tensors.check_written(outputs)
        if len(outputs) != self._size or len(inputs) != self._size:
            raise BadInput(f"all_to_all needs {self._size} tensors each way, found {len(inputs)} and {len(outputs)}")

        if len({t.dtype for t in (*inputs, *outputs)}) != 1:
            raise BadInput(f"all_to_all needs one dtype, found {sorted({str(t.dtype) for t in (*inputs, *outputs)})}")

        def operation(deadline: Deadline) -> None:
            rows_in, rows_out = [tensors.flat(t) for t in inputs], [tensors.flat(t) for t in outputs]
            spans_in, spans_out = [tensors.span(t) for t in rows_in], [tensors.span(t) for t in rows_out]
            run.all_to_all(
                self._outboxes, spans_in, spans_out, Call(CollectiveKind.all_to_all, 0, inputs[0].dtype), deadline
            )
            for tensor, row in zip(outputs, rows_out, strict=True):
                tensors.put_back(tensor, row)
            after()

        return self._issue(opts, operation, outputs if result is None else result)

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all ranks."""
        return self._issue(opts or dist.BarrierOptions(), lambda deadline: run.barrier(self._outboxes, deadline), [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = True) -> None:
        """Wait for all ranks; at the timeout, an error names all that are missing.

        `dist.monitored_barrier` accepts gloo by name only: call this method of the group instead.
        """
        del wait_all_ranks  # all missing ranks are named in any case
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts)


def create(options: Any, _: Any = None) -> ShmGroup:
    """Create the group for torch.distributed, which calls this on every rank."""
    member = bootstrap.Member(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        what=f"a shm group of {options.group_size} ranks",
    )
    return ShmGroup(member, list(options.global_ranks_in_group))
