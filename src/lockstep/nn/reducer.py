"""Gradients into buckets during backward, and the mean over the ranks out of them.

    1  a hook: a gradient is there, see hooks.py. A large one is put into its bucket at once
    2  the last of a bucket: the small ones are put there together; `.grad` becomes a view of the bucket
    3  buckets are exchanged in their fixed order, each as soon as those before it are on their way
    4  the end of backward: what is missing counts as zero and is flagged; wait for all
    5  a flag that is not 0: every rank has seen it, so all tell each other what was missing

[Note: the flag] A rank that lacks a gradient must not keep the others waiting, and a second collective in every step
to ask for it would cost as much as a bucket. So the question travels in the bucket itself, as one element more.

[Note: the end] A re-entrant checkpoint runs backwards of its own inside the backward, and a gradient that comes there
must not take their end for the end. The gradient of an output of the model comes before all others, in the backward
itself: so the outputs ask to be told of its end, and the parameters only if no output has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from lockstep.errors import BadInput
from lockstep.nn.filling import Filling
from lockstep.nn.hooks import Hooks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lockstep.nn.buckets import Bucket, Parameter
    from lockstep.nn.missing import Missing
    from lockstep.nn.reduction import Reduction

IDLE, ARMED, BEGUN = range(3)

_TWICE = (
    "{} got its gradient twice in one backward, and the first may be on its way to the other ranks. A re-entrant "
    "checkpoint does that: use torch.utils.checkpoint(..., use_reentrant=False), or pass static_graph=True, which "
    "exchanges all gradients after backward"
)


class Reducer:
    """Watches the parameters of one model; `arm` it before a backward whose gradients are to be reduced.

    `late` waits with every exchange for the end of backward, so that a parameter may become ready several times.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        like: Sequence[Parameter],
        buckets: Sequence[Bucket],
        reduction: Reduction,
        missing: Missing,
        *,
        late: bool,
    ) -> None:
        self._parameters, self._like, self._buckets = parameters, like, buckets
        self._reduction, self._missing, self._late = reduction, missing, late
        self._fillings: list[Filling] = []
        self._mode = [IDLE]
        self._fired = [False] * len(parameters)
        self._last = [-1] * len(buckets)
        self._next = 0
        self._fresh = False
        self._versions: list[int] = []
        self._unread: list[int] | None = None
        self._awaited = False
        """Whether an output has asked to be told of the end."""
        self.share = 1.0
        """What the mean is multiplied by: more than 1 where only the ranks that still have data count."""
        self._left = [len(bucket.slots) for bucket in buckets]
        self._hooks = Hooks(parameters, buckets, self._hook)

    def arm(self) -> None:
        """Have the next backward reduce; one that failed half-way is forgotten."""
        if self._mode[0] == BEGUN:
            self._reduction.forget()
            self._reset()
        self._awaited = False
        if not self._late:
            self._fresh = self._hooks.fresh()
            if self._hooks.few and not self._fresh:
                self._use_all_hooks()
        self._mode[0] = ARMED

    def disarm(self) -> None:
        """Have the next backward keep its gradients to itself."""
        self._mode[0] = IDLE

    def detach(self) -> None:
        """Remove the hooks."""
        self._hooks.detach()

    @property
    def output_hook(self) -> Callable[[Tensor], None]:
        """What the outputs' gradients must call, see [Note: the end]."""
        return self.begin if self._late else self._await_end

    def _use_all_hooks(self) -> None:
        self._hooks.use_all()
        self._left[:] = self._hooks.expected

    def check(self) -> None:
        """Settle what could not be read at the end of the last backward without waiting for the device."""
        if self._unread is not None:
            missed, self._unread = self._unread, None
            self._settle(missed)

    def shadow(self) -> None:
        """Take part in the reduction of ranks that still have data, with nothing to add."""
        self._allocate()
        for filling in self._fillings:
            filling.flat.zero_()
            self._reduction.begin(filling.wire)
        self._reduction.finish()
        self._settle(None)

    # -- during backward: called once per parameter, so as little as possible

    def _hook(self, number: int, position: int) -> Callable[[Tensor], None]:
        if self._late:
            return self.begin
        mode, fired, left, last = self._mode, self._fired, self._left, self._last
        slot = self._buckets[number].slots[position]
        index, small, fillings = slot.index, not slot.large, self._fillings
        begin, again, complete = self.begin, self._again, self._complete

        def ready(_: Tensor) -> None:
            if mode[0] != BEGUN:
                if mode[0] == IDLE:
                    return
                begin()
            if fired[index]:
                again(index)
            fired[index] = True
            left[number] -= 1
            if small:
                last[number] = position
            if not left[number]:
                complete(number)

        def ready_large(_: Tensor) -> None:
            begin()
            if mode[0] == BEGUN and not fired[index]:
                with torch.no_grad():
                    fillings[number].put_large(position)  # 1
            ready(_)

        return ready if small else ready_large

    def begin(self, _: object = None) -> None:
        """Note that a backward has begun; more than once does no harm. With `late`, the outputs call it too."""
        if self._mode[0] == ARMED:
            self._allocate()
            self._mode[0] = BEGUN
            if not self._awaited:
                torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _await_end(self, _: Tensor) -> None:
        if not self._awaited:
            self._awaited = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_awaited)

    def _end_awaited(self) -> None:
        """End a backward that brought gradients, also if no hook told of any."""
        self._awaited = False
        if self._mode[0] == ARMED and self._hooks.few and not self._hooks.fresh():
            self._allocate()
            self._mode[0] = BEGUN
        if self._mode[0] == BEGUN:
            self._end()

    def _again(self, index: int) -> None:
        raise BadInput(_TWICE.format(f"parameter {self._like[index].name}"))

    def _complete(self, number: int) -> None:
        left, count = self._left, len(self._buckets)
        if self._hooks.few and self._fillings[number].lacks():
            left[number] = 1  # for the end of backward
            return
        with torch.no_grad():
            self._fillings[number].put_small()  # 2
        while self._next < count and not left[self._next]:
            filling = self._fillings[self._next]
            self._reduction.begin(filling.wire)  # 3
            self._versions.append(filling.flat._version)
            self._next += 1

    # -- after it

    def _end(self) -> None:
        try:
            self._check_sent()
            with torch.no_grad():
                missed = self._fill()
                self._reduction.finish()
                if self.share != 1.0:
                    for filling in self._fillings:
                        filling.flat.mul_(self.share)
            self._choose_hooks()
        finally:
            self._reset()
        # Where reading a flag would make the host wait for the device, it is read before the next forward.
        if self._fillings[0].flat.is_cpu or self._missing.allowed:
            self._settle(missed)
        else:
            self._unread = missed

    def _check_sent(self) -> None:
        """Refuse gradients that were added to after their bucket was sent, where no hook has told."""
        if not self._hooks.few:
            return
        for filling, sent, bucket in zip(self._fillings, self._versions, self._buckets, strict=False):
            if filling.flat._version != sent or filling.replaced():
                names = [self._like[slot.index].name for slot in bucket.slots]
                self._use_all_hooks()
                self._reduction.forget()
                raise BadInput(_TWICE.format(f"a parameter between {names[-1]} and {names[0]}"))

    def _choose_hooks(self) -> None:
        """See [Note: few hooks]."""
        complete = self._next == len(self._buckets)
        if self._hooks.few and not complete:
            self._use_all_hooks()
        elif complete and self._fresh and not self._late:
            self._hooks.use_few(self._last)

    def _fill(self) -> list[int]:
        """Step 4: send what was not complete; return the parameters without a gradient."""
        missed: list[int] = []
        for number in range(self._next, len(self._buckets)):
            filling, slots = self._fillings[number], self._buckets[number].slots
            if self._left[number]:
                done = [self._fired[slot.index] for slot in slots]
                missed += [slots[position].index for position in filling.put_rest(done)]
            self._reduction.begin(filling.wire)
        return missed

    def _settle(self, missed: list[int] | None) -> None:
        """Step 5; None: this rank had no part in that backward."""
        flagged = [filling for filling in self._fillings if bool(filling.flag)]
        if not flagged:
            return
        for filling in flagged:
            filling.flag.zero_()
        elsewhere = self._missing.agree(missed)
        for filling, bucket in zip(self._fillings, self._buckets, strict=True):
            for position, slot in enumerate(bucket.slots):
                if slot.index in elsewhere:
                    filling.attach(position)

    def _allocate(self) -> None:
        if not self._fillings:
            scale = self._reduction.scale
            self._fillings += [Filling(bucket, self._parameters, self._like, scale) for bucket in self._buckets]

    def _reset(self) -> None:
        self._mode[0], self._next = IDLE, 0
        self._left[:] = self._hooks.expected
        self._fired[:] = [False] * len(self._fired)
        self._versions.clear()
