"""A call of the model that a function repeats: an evaluation often asks for the output twice, once through the loss.

The stages before the last end with the first call, so a second one cannot pass through them. Nor need it: in evaluation
mode a model gives the same output for the same arguments. In training it does not, because of dropout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.stages.calls import Moment, Surroundings, is_same


class FirstCall:
    """The arguments and the output of a call in an evaluation, and what was around it."""

    def __init__(self, arguments: Any, output: Any, device: str) -> None:
        self._arguments, self._output, self.output = Moment.of(arguments), Moment.of(output), output
        self._devices = ("cpu", torch.device(device).type)
        self._around = Surroundings.now(self._devices)
        leaves = (*self._arguments.leaves, *self._output.leaves)
        self._copies = [(one, one.clone()) for one in leaves if isinstance(one, Tensor) and one.is_inference()]
        """Of tensors that do not count how often they are changed."""

    def answers(self, arguments: Any) -> bool:
        """Say whether a call with these would return the same: neither these nor the output have changed since."""
        unchanged = self._arguments.unchanged() and self._output.unchanged()
        unchanged = unchanged and all(torch.equal(one, before) for one, before in self._copies)
        alike = unchanged and self._around == Surroundings.now(self._devices)
        return alike and self._arguments.matches(Moment.of(arguments), _equal)


def _equal(one: Any, other: Any) -> bool:
    if one is other or not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return is_same(one, other)
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
