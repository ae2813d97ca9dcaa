"""Collects gradients in buckets during backward, and replaces them by the mean over the ranks.

    1  a hook reports a gradient, see hooks.py. A large one is copied into its bucket at once
    2  the last gradient of a bucket: the small ones are copied together; `.grad` becomes a view of the bucket
    3  buckets are reduced in a fixed order, each as soon as those before it have begun
    4  the end of backward: a missing gradient counts as zero and sets the flag; wait for all buckets
    5  a flag that is not 0: every rank sees it, so all ranks gather what was missing

[Note: the flag] A rank that lacks a gradient must not keep the others waiting, and a second collective in every step to
ask for it would cost as much as a bucket. So the question is part of the bucket itself: one more element.

[Note: the end] A re-entrant checkpoint runs backwards of its own inside the backward; their end must not be mistaken
for the end of the whole. The gradient of an output of the model comes before all others, in the outer backward: so the
hooks of the outputs request the callback at its end, and those of the parameters only if no output has done so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from lockstep.errors import BadInput
from lockstep.nn.bucket_buffer import BucketBuffer
from lockstep.nn.hooks import GradientHooks
from lockstep.torch_compat.tensors import at_end_of_backward, version

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lockstep.nn.buckets import Bucket, ParameterSpec
    from lockstep.nn.missing_gradients import MissingGradients
    from lockstep.nn.reduction import Reduction

IDLE, ARMED, BEGUN = range(3)

_TWICE = (
    "{} got its gradient twice in one backward, after the first may have been sent to the other ranks. Re-entrant "
    "checkpoints do that: use torch.utils.checkpoint(..., use_reentrant=False), or pass static_graph=True, which "
    "reduces all gradients after backward"
)


class Reducer:
    """Reduces the gradients of one model; `arm` it before a backward whose gradients are to be reduced.

    With `after_backward` all buckets are reduced at the end of backward, so a parameter may become ready several times.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        specs: Sequence[ParameterSpec],
        buckets: Sequence[Bucket],
        reduction: Reduction,
        missing: MissingGradients,
        *,
        after_backward: bool,
    ) -> None:
        self._parameters, self._specs, self._buckets = parameters, specs, buckets
        self._reduction, self._missing, self._after_backward = reduction, missing, after_backward
        self._bucket_buffers: list[BucketBuffer] = []
        self._mode = [IDLE]
        self._fired = [False] * len(parameters)
        self._last = [-1] * len(buckets)
        self._next = 0
        self._began_without_gradients = False
        self._versions: list[int] = []
        self._unread: list[int] | None = None
        self._end_requested = False
        """Whether an output has requested the callback at the end of backward."""
        self.join_factor = 1.0
        """A factor for the mean: more than 1 where only the ranks that still have data count."""
        self._left = [len(bucket.slots) for bucket in buckets]
        self._hooks = GradientHooks(parameters, buckets, self._hook)

    def arm(self) -> None:
        """Let the next backward reduce its gradients; a backward that failed half-way is forgotten."""
        self.forget()
        self._end_requested = False
        if not self._after_backward:
            self._began_without_gradients = self._hooks.no_gradients_yet()
            if self._hooks.few and not self._began_without_gradients:
                self._use_all_hooks()
        self._mode[0] = ARMED

    def disarm(self) -> None:
        """Let the next backward only accumulate its gradients; a backward that failed half-way is forgotten."""
        self.forget()
        self._mode[0] = IDLE

    def forget(self) -> None:
        """Wait for what a backward sent that failed half-way, if one did; what was sent counts as zero from now on."""
        self._reduction.forget()
        if self._mode[0] == BEGUN:
            self._reset()

    def detach(self) -> None:
        """Remove the hooks."""
        self._hooks.detach()

    @property
    def output_hook(self) -> Callable[[Tensor], None]:
        """The hook for the model's outputs, see [Note: the end]."""
        return self.begin if self._after_backward else self._request_end

    def _use_all_hooks(self) -> None:
        self._hooks.use_all()
        self._left[:] = self._hooks.expected

    def check(self) -> None:
        """Read the flags of the last backward, if reading them there would have made the host wait for the device."""
        if self._unread is not None:
            missing, self._unread = self._unread, None
            self._handle_missing(missing)

    def take_part(self) -> None:
        """Take part in the reduction of the ranks that still have data, with zeros."""
        self._allocate()
        for buffer in self._bucket_buffers:
            buffer.flat.zero_()
            self._reduction.begin(buffer.payload)
        self._reduction.finish()
        self._handle_missing(None)

    # -- during backward: called for every parameter, so it does as little as possible

    def _hook(self, number: int, position: int) -> Callable[[Tensor], None]:
        if self._after_backward:
            return self.begin
        mode, fired, left, last = self._mode, self._fired, self._left, self._last
        slot = self._buckets[number].slots[position]
        index, small, buffers = slot.index, not slot.large, self._bucket_buffers
        begin, again, complete = self.begin, self._raise_twice, self._complete

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
                    buffers[number].put_large(position)  # 1
            ready(_)

        return ready if small else ready_large

    def begin(self, _: object = None) -> None:
        """Note that a backward has begun; may be called more than once."""
        if self._mode[0] == ARMED:
            self._allocate()
            self._mode[0] = BEGUN
            if not self._end_requested:
                at_end_of_backward(self._end)

    def _request_end(self, _: Tensor) -> None:
        if not self._end_requested:
            self._end_requested = True
            at_end_of_backward(self._end_if_begun)

    def _end_if_begun(self) -> None:
        """End a backward that computed gradients, even if no hook reported one."""
        self._end_requested = False
        if self._mode[0] == ARMED and self._hooks.few and not self._hooks.no_gradients_yet():
            self._allocate()
            self._mode[0] = BEGUN
        if self._mode[0] == BEGUN:
            self._end()

    def _raise_twice(self, index: int) -> None:
        raise BadInput(_TWICE.format(f"parameter {self._specs[index].name}"))

    def _complete(self, number: int) -> None:
        left, count = self._left, len(self._buckets)
        if self._hooks.few and self._bucket_buffers[number].lacks():
            left[number] = 1  # the end of backward completes it
            return
        with torch.no_grad():
            self._bucket_buffers[number].put_small()  # 2
        while self._next < count and not left[self._next]:
            buffer = self._bucket_buffers[self._next]
            self._reduction.begin(buffer.payload)  # 3
            self._versions.append(version(buffer.flat))
            self._next += 1

    # -- after backward

    def _end(self) -> None:
        try:
            self._check_sent()
            with torch.no_grad():
                missing = self._fill()
                self._reduction.finish()
                if self.join_factor != 1.0:
                    for buffer in self._bucket_buffers:
                        buffer.flat.mul_(self.join_factor)
            self._choose_hooks()
        finally:
            self._reset()
        # If reading a flag would make the host wait for the device, it is read before the next forward.
        if self._bucket_buffers[0].flat.is_cpu or self._missing.allowed:
            self._handle_missing(missing)
        else:
            self._unread = missing

    def _check_sent(self) -> None:
        """Raise if a gradient without a hook changed after its bucket was sent."""
        if not self._hooks.few:
            return
        for buffer, sent, bucket in zip(self._bucket_buffers, self._versions, self._buckets, strict=False):
            if version(buffer.flat) != sent or buffer.replaced():
                names = [self._specs[slot.index].name for slot in bucket.slots]
                self._use_all_hooks()
                raise BadInput(_TWICE.format(f"a parameter between {names[-1]} and {names[0]}"))

    def _choose_hooks(self) -> None:
        """Use few hooks or all of them in the next backward, see [Note: few hooks]."""
        complete = self._next == len(self._buckets)
        if self._hooks.few and not complete:
            self._use_all_hooks()
        elif complete and self._began_without_gradients and not self._after_backward:
            self._hooks.use_few(self._last)

    def _fill(self) -> list[int]:
        """Do step 4: begin the incomplete buckets; return the parameters without a gradient."""
        missing: list[int] = []
        for number in range(self._next, len(self._buckets)):
            buffer, slots = self._bucket_buffers[number], self._buckets[number].slots
            if self._left[number]:
                done = [self._fired[slot.index] for slot in slots]
                missing += [slots[position].index for position in buffer.put_rest(done)]
            self._reduction.begin(buffer.payload)
        return missing

    def _handle_missing(self, missing: list[int] | None) -> None:
        """Do step 5; None means that this rank had no data in that backward."""
        flagged = [buffer for buffer in self._bucket_buffers if bool(buffer.flag)]
        if not flagged:
            return
        for buffer in flagged:
            buffer.flag.zero_()
        elsewhere = self._missing.agree(missing)
        for buffer, bucket in zip(self._bucket_buffers, self._buckets, strict=True):
            for position, slot in enumerate(bucket.slots):
                if slot.index in elsewhere:
                    buffer.attach(position)

    def _allocate(self) -> None:
        if not self._bucket_buffers:
            scale = self._reduction.scale
            self._bucket_buffers += [
                BucketBuffer(bucket, self._parameters, self._specs, scale) for bucket in self._buckets
            ]

    def _reset(self) -> None:
        self._mode[0], self._next = IDLE, 0
        self._left[:] = self._hooks.expected
        self._fired[:] = [False] * len(self._fired)
        self._versions.clear()
