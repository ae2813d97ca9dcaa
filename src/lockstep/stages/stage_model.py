"""The model as a loss function sees it on one stage: its call runs this stage's layers.

On the first stage the call runs the first layers, and the loss function ends there. On the last it goes on with what
the stage before sent, and returns the output to the loss function; in between, both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.lanes.rng import random_state, set_random_state
from lockstep.stages.chain import CALLED_ONCE, Layer
from lockstep.stages.repeated_call import FirstCall
from lockstep.stages.transfer import Arrived
from lockstep.stages.values import PassedValue, pack, unpack

WHOLE = ("parameters", "named_parameters", "state_dict", "buffers", "named_buffers", "children", "modules")
"""What only a whole model can answer."""


class HandedOn(BaseException):
    """This stage has done its layers; not an Exception, so that a loss function's own handlers let it pass."""


class Handed(NamedTuple):
    """What a stage passes to the next one."""

    packed: PassedValue
    tensors: list[Tensor]
    random: list[bytes]

    @property
    def trained(self) -> list[Tensor]:
        """Those for which a gradient comes back."""
        return [one for one, form in zip(self.tensors, self.packed.tensors, strict=True) if form.trained]


class Received:
    """What came from the stage before, as the start of this stage's graph; its gradients stay here after backward."""

    def __init__(self, arrived: Arrived) -> None:
        self.packed, self.random = arrived.packed, arrived.random
        self._tensors = arrived.tensors
        self.gradients: list[Tensor | None] = [None] * sum(form.trained for form in self.packed.tensors)
        self.token: Tensor | None = None
        """What the graph's start is a function of; None: nothing in it is trained."""

    def value(self) -> Any:
        """Return the value; what was trained is so again, and may be changed in place as before the cut."""
        chosen = [i for i, form in enumerate(self.packed.tensors) if form.trained]
        tensors = list(self._tensors)
        if chosen and torch.is_grad_enabled():
            self._waiting = [tensors[index] for index in chosen]
            self.token = torch.empty(0, requires_grad=True)
            made = _Start.apply(self.token, self)  # type: ignore[no-untyped-call]
            for index, tensor in zip(chosen, made, strict=True):
                tensors[index] = tensor
        self._tensors = []  # the graph keeps what it needs
        return unpack(self.packed, tensors)

    def take(self) -> tuple[Tensor, ...]:
        """Return the tensors that are trained, once."""
        taken, self._waiting = tuple(self._waiting), []
        return taken

    def starts(self, node: Any) -> bool:
        """Say whether the graph starts at this node."""
        return getattr(node, "received", None) is self


class _Start(torch.autograd.Function):
    """Where a stage's graph starts. Its tensors are results, not leaves, so layers may change them in place."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, received: Received) -> tuple[Tensor, ...]:
        ctx.received = received
        ctx.set_materialize_grads(False)
        return received.take()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        ctx.received.gradients = list(gradients)
        return None, None


class _LaneCall:
    """What changes with every lane: in an object of its own, since a module's attributes are slow to set."""

    def __init__(self) -> None:
        self.count = 0
        """How often the model was called."""
        self.received: Received | None = None
        self.handed: Handed | None = None
        self.first: FirstCall | None = None
        """In an evaluation, on the last stage: what was returned already."""


class CutModel(nn.Module):
    """What a loss function gets in place of a model that is cut: it may call it once, and read plain values of it."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        # not as a child: this module has no parameters of its own
        object.__setattr__(self, "_whole", whole)
        self._now = _LaneCall()

    def give_to(self, function: Callable[[nn.Module], Any]) -> Any:
        """Call a function with this model; refuse one that does not call the model just once."""
        self._now.count = 0
        object.__setattr__(self, "training", self._whole.training)
        result = function(self)
        if self._now.count != 1:
            raise BadInput(CALLED_ONCE.format(f"{self._now.count} times"))
        return result

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the plain model's layers."""
        self._whole.train(mode)
        object.__setattr__(self, "training", mode)
        return self

    def count_call(self) -> None:
        """Note a call; refuse a second one."""
        self._now.count += 1
        if self._now.count > 1:
            raise BadInput(CALLED_ONCE.format("more than once"))

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep what a loss function sets where the layers look for it."""
        whole = self.__dict__.get("_whole")
        if whole is None or name.startswith("_") or name == "training":
            super().__setattr__(name, value)
        else:
            setattr(whole, name, value)

    def __getattr__(self, name: str) -> Any:
        whole = self.__dict__.get("_whole")
        if whole is None:
            return super().__getattr__(name)
        value = getattr(whole, name)
        if isinstance(value, Tensor) and value.is_meta:
            raise BadInput(
                f"with stages, {name} is on the stage that uses it, and a function of model and batch reads model."
                f"{name} where it is not: put that into the model's forward, or use ddp"
            )
        if isinstance(value, nn.Module) or (inspect.ismethod(value) and isinstance(value.__self__, nn.Module)):
            raise BadInput(
                f"with stages, loss(model, batch) can only call model(...), and it uses model.{name}: put that into "
                "the model's forward, or use ddp"
            )
        return value


def _refusing(name: str) -> Callable[..., Any]:
    """Return a method that says why a model that is cut cannot answer."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise BadInput(
            f"loss(model, batch) calls model.{name}(), and with stages no worker has the whole model: put that into "
            "the optimizer (weight_decay) or the model's forward, or use ddp"
        )

    return refuse


for _name in WHOLE:
    setattr(CutModel, _name, _refusing(_name))


class StagedModel(CutModel):
    """What the loss function and the metrics get in place of the model, on a stage of ours."""

    def __init__(self, whole: nn.Module, layers: Sequence[Layer], *, last: bool, device: str) -> None:
        super().__init__(whole)
        self._layers = tuple(layers)
        self._last, self._device = last, device

    def run(self, function: Callable[[nn.Module], Any], received: Received | None) -> tuple[Any, Handed | None]:
        """Call a function with this model; return what it returned, or what is handed on to the next stage."""
        now = self._now
        now.received, now.handed, now.first = received, None, None
        try:
            return self.give_to(function), None
        except HandedOn:
            return None, now.handed
        finally:
            now.received = now.first = None

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run this stage's layers."""
        now = self._now
        if now.first is not None and now.first.answers((arguments, named)):
            return now.first.output
        self.count_call()
        layers: Sequence[Layer] = self._layers
        received = now.received
        if received is None:
            value = layers[0].call(*arguments, **named)
            layers = layers[1:]
        else:
            set_random_state(received.random, self._device)
            value = received.value()
        for layer in layers:
            value = layer.call(value)
        if self._last:
            if not self.training and not torch.is_grad_enabled():
                now.first = FirstCall((arguments, named), value, self._device)
            return value
        packed, tensors = pack(value, f"the layer {self._layers[-1].name}")
        now.handed = Handed(packed, tensors, random_state(self._device))
        raise HandedOn
