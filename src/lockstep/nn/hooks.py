"""Which parameters tell that their gradient is there: all of them at first, later the few that matter.

[Note: few hooks] A hook in Python takes microseconds, which is much for a small tensor. Backward brings the gradients
in the same order every time, as a rule. So after a backward that brought all of them, only the large tensors keep their
hook, and the last small one of each bucket: when that is there, the others are. This must not become a guess:

- it holds for a backward that finds no gradients from before: then one that is there was made in this backward;
- if one is not there after all, its bucket waits for the end of backward, and from then on all have their hooks again;
- one that is added to after its bucket was sent has changed the bucket's memory, which the version counter tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lockstep.nn.buckets import Bucket

TRIES = 3
"""How often it is tried to do with few: a model that changes its order for ever keeps all."""


class Hooks:
    """The hooks of one model's parameters; `make` returns the one of a place: (bucket, position)."""

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
        """Whether only those that matter have one."""
        self.expected = [0] * len(buckets)
        """How many of a bucket tell that they are there."""
        self.use_all()

    def use_all(self) -> None:
        """Give every parameter its hook."""
        for place, (parameter, _, hook) in self._places.items():
            if place not in self._handles:
                self._handles[place] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self.few = False
        self._count()

    def use_few(self, last: Sequence[int]) -> None:
        """Keep those of the large ones, and of the position of each bucket that came last of the small ones."""
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

    def fresh(self) -> bool:
        """Tell whether no small parameter has a gradient from before."""
        return all(parameter.grad is None for parameter in self._small)

    def detach(self) -> None:
        """Remove all."""
        for handle in self._handles.values():
            handle.remove()
