"""The memory of a bucket: gradients are copied into it and become views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.errors import BadInput
from lockstep.torch_compat.tensors import foreach_copy_

if TYPE_CHECKING:
    from torch import nn

    from lockstep.nn.buckets import Bucket, ParameterSpec


class BucketBuffer:
    """One bucket's flat tensor, and a view of it for each gradient. Call its methods under torch.no_grad()."""

    def __init__(
        self, bucket: Bucket, parameters: Sequence[nn.Parameter], specs: Sequence[ParameterSpec], scale: float
    ) -> None:
        self.flat = torch.zeros(bucket.numel, dtype=bucket.dtype, device=bucket.device)
        self.payload = torch.view_as_real(self.flat).view(-1) if bucket.dtype.is_complex else self.flat
        """What is reduced: the flat tensor as real numbers, because backends have no complex ones."""
        self.flag = self.flat[-1:]
        self._scale = scale
        self._small = self.flat[bucket.small_from :]
        self._names = [specs[slot.index].name for slot in bucket.slots]
        self._parameters = [parameters[slot.index] for slot in bucket.slots]
        self.views = [_view(self.flat, slot.start, specs[slot.index]) for slot in bucket.slots]
        self._large = sum(slot.large for slot in bucket.slots)
        self._rest = list(zip(self._parameters, self.views, strict=True))[self._large :]

    def put_large(self, position: int) -> None:
        """Copy one gradient into the bucket, scaled."""
        parameter, view = self._parameters[position], self.views[position]
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            self._raise_unusable(position)
        elif gradient is view:
            view.mul_(self._scale)
        elif self._scale == 1.0:
            view.copy_(gradient)
        else:
            torch.mul(gradient, self._scale, out=view)
        parameter.grad = view

    def lacks(self) -> bool:
        """Return whether a small gradient is missing."""
        return any(parameter.grad is None for parameter, _ in self._rest)

    def replaced(self) -> bool:
        """Return whether a small gradient is no longer a view of the bucket."""
        return any(parameter.grad is not view for parameter, view in self._rest)

    def put_small(self) -> None:
        """Copy all small gradients in one call."""
        fresh = [(view, gradient) for parameter, view in self._rest if (gradient := parameter.grad) is not view]
        if fresh:
            views, gradients = zip(*fresh, strict=True)
            try:
                foreach_copy_(views, gradients)
            except (RuntimeError, TypeError):
                for position, parameter in enumerate(self._parameters):
                    if parameter.grad is None or parameter.grad.layout is not torch.strided:
                        self._raise_unusable(position)
                raise
        if self._scale != 1.0:
            self._small.mul_(self._scale)
        for parameter, view in self._rest:
            parameter.grad = view

    def put_rest(self, done: Sequence[bool]) -> list[int]:
        """Copy the existing gradients of an incomplete bucket; return the positions of the missing ones.

        `done` says which positions became ready in this backward: the large ones of them are copied already. A
        gradient of an earlier backward counts too. A missing one is zero and sets the flag.
        """
        missing = []
        for position, (parameter, view) in enumerate(zip(self._parameters, self.views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
                missing.append(position)
            elif position < self._large:
                if not done[position]:
                    self.put_large(position)
            elif gradient is not view:
                view.copy_(gradient)
                parameter.grad = view
        if missing:
            self.flag.fill_(1)
        if self._scale != 1.0:
            self._small.mul_(self._scale)
        return missing

    def attach(self, position: int) -> None:
        """Set a gradient that was missing on this rank to the mean over the others."""
        self._parameters[position].grad = self.views[position]

    def _raise_unusable(self, position: int) -> None:
        name = self._names[position]
        if self._parameters[position].grad is None:
            raise BadInput(
                f"the gradient of {name} was removed by another hook before it was reduced: remove that hook"
            )
        raise BadInput(
            f"{name} has a sparse gradient: use sparse=False in its embedding, or torch's DDP for this model"
        )


def _view(flat: Tensor, start: int, specs: ParameterSpec) -> Tensor:
    """Return a view of the flat tensor with the parameter's memory layout, if that has no gaps; else contiguous."""
    if specs.is_dense:
        return flat.as_strided(specs.shape, specs.stride, start)
    return flat[start : start + specs.numel].view(specs.shape)
