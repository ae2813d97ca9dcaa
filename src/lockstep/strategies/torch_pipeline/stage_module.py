"""One stage as torch.distributed.pipelining calls it, within the recipe's loss function.

Every stage's layers run where the loss function calls the model, and so within what it sets around that call, such as
autocast; there the loss function ends. The last stage's output then goes to the loss function once more, which gets it
where it calls the model, and returns the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from lockstep.stages.chain import Layer
from lockstep.stages.stage_model import CutModel, HandedOn
from lockstep.strategies.clock import Clock, NoClock


class ModelEntry(CutModel):
    """Runs a stage's layers where a loss function calls the model, and ends the loss function there."""

    def __init__(self, whole: nn.Module, layers: Sequence[Layer], *, first: bool) -> None:
        super().__init__(whole)
        self._layers, self._first = tuple(layers), first
        self._value: Any = None

    def values(self, function: Callable[[nn.Module], Any], received: Any) -> Any:
        """Return what the layers make of a value; on the first stage, of the arguments of the function's call."""
        self._value = received
        try:
            self.give_to(function)
        except HandedOn:
            value, self._value = self._value, None
            return value
        raise AssertionError("a function that does not call the model is refused")

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the layers."""
        self.count_call()
        first, *others = self._layers
        value = first.call(*arguments, **named) if self._first else first.call(self._value)
        for layer in others:
            value = layer.call(value)
        self._value = value
        raise HandedOn


class ModelExit(CutModel):
    """Returns an output that is already there, whatever it is called with."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__(whole)
        self._output: Any = None

    def loss(self, function: Callable[[nn.Module], Any], output: Any) -> Any:
        """Return what a function makes of the model's output."""
        self._output = output
        try:
            return self.give_to(function)
        finally:
            self._output = None

    def forward(self, *_: Any, **__: Any) -> Any:
        """Return the output."""
        self.count_call()
        return self._output


class StageChain(nn.Module):
    """A stage as torch calls it: tensors in, a tensor or a tuple of tensors out."""

    def __init__(self, run: Callable[[tuple[Tensor, ...]], Any]) -> None:
        super().__init__()
        self._run = run

    def forward(self, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the stage on the next lane; gloo sends what lies in one piece."""
        value = self._run(received)
        return tuple(one.contiguous() for one in value) if type(value) is tuple else value.contiguous()


class TimedStage(PipelineStage):
    """torch's stage; its laps say how long each lane's forward and backward took, and the rest is waiting."""

    clock: Clock = NoClock()
    lanes: Sequence[int] = ()
    """The lanes of the step, by the numbers that torch gives them."""

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Run a lane forward."""
        lane = self.lanes[fwd_chunk_id]
        self.clock.lap("wait", lane)
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **options)  # type: ignore[no-untyped-call, unused-ignore]
        self.clock.lap("forward", lane)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Run a lane backward."""
        lane = self.lanes[bwd_chunk_id]
        self.clock.lap("wait", lane)
        result = super().backward_one_chunk(bwd_chunk_id, *arguments, **options)  # type: ignore[no-untyped-call, unused-ignore]
        self.clock.lap("backward", lane)
        return result
