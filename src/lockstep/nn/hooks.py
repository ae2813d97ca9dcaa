"""Which parameters have a hook that reports their gradient: at first all of them, later only a few.

[Note: few hooks] A hook in Python takes microseconds, which is much for a small tensor. Backward usually computes the
gradients in the same order every time. So after a backward that computed all of them, only the large tensors keep their
hooks, and the last small tensor of each bucket: when its gradient exists, those of the others do. This is checked:

- it is used only if no small parameter has a gradient before the backward, so that one that exists is of this backward;
- if a gradient is missing after all, its bucket waits for the end of backward, and all hooks are registered again;
- a gradient that changes after its bucket was sent changes the bucket's memory, which its version counter shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lockstep.nn.buckets import Bucket

TRIES = 3
"""How often few hooks are tried: a model whose order keeps changing keeps all of them."""


class GradientHooks:
    """The hooks of one model's parameters; `make(bucket, position)` returns the hook of one of them."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        buckets: Sequence[Bucket],
        make: Callable[[int, int], Callable[[Tensor], None]],
    ) -> None:
        self._places = {
            (number, position): (parameters[slot.index], slot.large, make(number, position))
            for number, bucket in enumerate(buckets)
            for position, slot in enumerate(bucket.slots)
        }
        self._small = [parameter for parameter, large, _ in self._places.values() if not large]
        self._handles: dict[tuple[int, int], Any] = {}
        self._tries = TRIES
        self.few = False
        """Whether only a few parameters have a hook."""
        self.expected = [0] * len(buckets)
        """How many parameters of each bucket have a hook."""
        self.use_all()

    def use_all(self) -> None:
        """Register the hook of every parameter."""
        for place, (parameter, _, hook) in self._places.items():
            if place not in self._handles:
                self._handles[place] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self.few = False
        self._count()

    def use_few(self, last: Sequence[int]) -> None:
        """Keep the hooks of the large parameters, and of the small one at position `last` of each bucket."""
        if self.few or not self._tries:
            return
        self._tries -= 1
        for place in [p for p, (_, large, _) in self._places.items() if not large and p[1] != last[p[0]]]:
            self._handles.pop(place).remove()
        self.few = True
        self._count()

    def _count(self) -> None:
        self.expected[:] = [0] * len(self.expected)
        for number, _ in self._handles:
            self.expected[number] += 1

    def no_gradients_yet(self) -> bool:
        """Return whether no small parameter has a gradient yet."""
        return all(parameter.grad is None for parameter in self._small)

    def detach(self) -> None:
        """Remove all."""
        for handle in self._handles.values():
            handle.remove()
