"""A lane's backward in two halves: the gradients of one backward, bit by bit, or it is not done."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from lockstep.stages.halves import halves_of
from lockstep.stages.stage_model import Received
from lockstep.stages.transfer import Arrived
from lockstep.stages.values import pack
from lockstep.torch_compat.graph import SavedElsewhere

WIDTH = 8


class Residual(nn.Module):
    """Attention with a normalisation, a way around it, and a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.7))

    def forward(self, values: Tensor) -> Tensor:
        queries, keys, own = self.inner(self.norm(values)).chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(queries, keys, own, is_causal=True)
        last: Tensor = values + self.scale * self.last(F.gelu(attended))
        return last


class Hooked(nn.Module):
    """A gradient that a hook changes on its way, at the output of a layer with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        inner = self.first(values)
        inner.register_hook(lambda gradient: 0.5 * gradient)
        last: Tensor = self.second(inner)
        return last


class Images(nn.Module):
    """Convolution, BatchNorm and a change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(5, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(inplace=True))

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.layers(values)
        return last


class Unused(nn.Module):
    """A weight that this lane does not use, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.frozen(self.used(values))
        return last


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.layer(torch.tanh(self.layer(values)))
        return last


class Double(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return 2.0 * values

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return 2.0 * gradient


class OwnFunction(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        doubled: Tensor = Double.apply(super().forward(values))  # type: ignore[no-untyped-call]
        return doubled


class Penalised(nn.Linear):
    """A weight that also adds to the result by itself."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) + self.weight.square().mean()


class PartChanged(nn.Linear):
    """Changes a part of a tensor in place."""

    def forward(self, values: Tensor) -> Tensor:
        result = super().forward(values).clone()
        result[..., :2] *= 3.0
        return result


class Apart(nn.Linear):
    """A result that does not depend on what was received."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(torch.ones_like(values))


SPLIT: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)),
    "attention": lambda: nn.Sequential(Residual(), Residual()),
    "images": Images,
    "a hook of a tensor": Hooked,
    "a weight made of two": lambda: nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()),
    "not all weights": Unused,
    "no weights": lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
}
IN_ONE: dict[str, Callable[[], nn.Module]] = {
    "a layer called twice": Twice,
    "a function in Python": lambda: OwnFunction(WIDTH, WIDTH),
    "a recurrent layer": lambda: nn.RNN(WIDTH, WIDTH, batch_first=True),
    "a weight beside the way": lambda: Penalised(WIDTH, WIDTH),
    "a view changed in place": lambda: PartChanged(WIDTH, WIDTH),
    "nothing of what was received": lambda: Apart(WIDTH, WIDTH),
}


def received(*, trained: bool = True) -> Received:
    values = torch.randn(4, 5, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_(trained)
    packed, tensors = pack(values, "a layer")
    return Received(Arrived(packed, [one.detach() for one in tensors], []))


def forward(make: Callable[[], nn.Module], came: Received) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = make()
    result = model(came.value())
    return model, (result[0] if isinstance(result, tuple) else result)


def gradients(model: nn.Module, came: Received) -> dict[str, Tensor | None]:
    own = {name: parameter.grad for name, parameter in model.named_parameters()}
    return own | {f"received {index}": one for index, one in enumerate(came.gradients)}


@pytest.mark.parametrize("name", SPLIT)
def test_both_halves_are_the_whole(name: str) -> None:
    came = received()
    model, result = forward(SPLIT[name], came)
    torch.autograd.backward(result, torch.ones_like(result))
    wanted = gradients(model, came)

    came = received()
    model, result = forward(SPLIT[name], came)
    halves = halves_of([result], came)
    assert halves is not None
    halves.first([result], [torch.ones_like(result)])
    first = gradients(model, came)
    assert all((one is None) != key.startswith("received") for key, one in first.items())
    halves.second()
    last = gradients(model, came)
    for key, one in wanted.items():
        other = last[key]
        assert torch.equal(one, other) if one is not None and other is not None else one is other, key


@pytest.mark.parametrize("name", IN_ONE)
def test_what_must_be_done_in_one(name: str) -> None:
    came = received()
    _, result = forward(IN_ONE[name], came)
    assert halves_of([result], came) is None


def test_nothing_that_was_received_is_trained() -> None:
    came = received(trained=False)
    _, result = forward(SPLIT["linear"], came)
    assert halves_of([result], came) is None


def test_a_checkpoint_is_seen() -> None:
    layer, values = nn.Linear(WIDTH, WIDTH), torch.ones(2, WIDTH, requires_grad=True)
    plain, within, after = SavedElsewhere(), SavedElsewhere(), SavedElsewhere()
    with plain.watch():
        layer(values)
    with within.watch():
        checkpoint(layer, values, use_reentrant=False)
    with after.watch():
        pass
    checkpoint(layer, values, use_reentrant=False)
    assert [plain.seen, within.seen, after.seen] == [False, True, False]


def test_nothing_of_a_lane_stays() -> None:
    """The graph, its hooks and the gradients that they keep are gone without the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        assert _after_both_halves()() is None
    finally:
        gc.enable()


def _after_both_halves() -> weakref.ref[Received]:
    """Return what was received, which the graph's start holds."""
    came = received()
    _, result = forward(SPLIT["attention"], came)
    halves = halves_of([result], came)
    assert halves is not None
    halves.first([result], [torch.ones_like(result)])
    halves.second()
    return weakref.ref(came)
