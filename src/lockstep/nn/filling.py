"""A bucket with its memory: gradients are put into it, and become views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from lockstep.nn.buckets import Bucket, Parameter


class Filling:
    """One bucket's flat tensor, and a view of it for each gradient. Called without recording gradients."""

    def __init__(
        self, bucket: Bucket, parameters: Sequence[nn.Parameter], like: Sequence[Parameter], scale: float
    ) -> None:
        self.flat = torch.zeros(bucket.numel, dtype=bucket.dtype, device=bucket.device)
        self.wire = torch.view_as_real(self.flat).view(-1) if bucket.dtype.is_complex else self.flat
        """What is exchanged: backends have no complex numbers."""
        self.flag = self.flat[-1:]
        self._scale = scale
        self._small = self.flat[bucket.small_from :]
        self._names = [like[slot.index].name for slot in bucket.slots]
        self._parameters = [parameters[slot.index] for slot in bucket.slots]
        self.views = [_view(self.flat, slot.start, like[slot.index]) for slot in bucket.slots]
        self._large = sum(slot.large for slot in bucket.slots)
        self._rest = list(zip(self._parameters, self.views, strict=True))[self._large :]

    def put_large(self, position: int) -> None:
        """Take one gradient, already scaled on its way."""
        parameter, view = self._parameters[position], self.views[position]
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            self._refuse(position)
        elif gradient is view:
            view.mul_(self._scale)
        elif self._scale == 1.0:
            view.copy_(gradient)
        else:
            torch.mul(gradient, self._scale, out=view)
        parameter.grad = view

    def lacks(self) -> bool:
        """Tell whether a small gradient is not there."""
        return any(parameter.grad is None for parameter, _ in self._rest)

    def replaced(self) -> bool:
        """Tell whether a small gradient is no longer the view that it was made."""
        return any(parameter.grad is not view for parameter, view in self._rest)

    def put_small(self) -> None:
        """Take all the small gradients in one call."""
        fresh = [(view, gradient) for parameter, view in self._rest if (gradient := parameter.grad) is not view]
        if fresh:
            views, gradients = zip(*fresh, strict=True)
            try:
                torch._foreach_copy_(views, gradients)
            except (RuntimeError, TypeError):
                for position, parameter in enumerate(self._parameters):
                    if parameter.grad is None or parameter.grad.layout is not torch.strided:
                        self._refuse(position)
                raise
        if self._scale != 1.0:
            self._small.mul_(self._scale)
        for parameter, view in self._rest:
            parameter.grad = view

    def put_rest(self, done: Sequence[bool]) -> list[int]:
        """Take what is there of a bucket that is not complete; return the positions of what is not.

        `done` says which positions were ready in this backward: the large ones of them are in their places. A
        gradient from earlier backwards counts too. What is missing is zero for the others, and flagged.
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
        """Make a gradient that was missing here what it is on the other ranks."""
        self._parameters[position].grad = self.views[position]

    def _refuse(self, position: int) -> None:
        name = self._names[position]
        if self._parameters[position].grad is None:
            raise BadInput(
                f"the gradient of {name} was taken away by another hook before it was reduced: remove that hook"
            )
        raise BadInput(
            f"{name} has a sparse gradient: use sparse=False in its embedding, or torch's DDP for this model"
        )


def _view(flat: Tensor, start: int, like: Parameter) -> Tensor:
    """Return a piece of the flat tensor that lies in memory as the parameter does, where that is without gaps."""
    if like.is_dense:
        return flat.as_strided(like.shape, like.stride, start)
    return flat[start : start + like.numel].view(like.shape)
