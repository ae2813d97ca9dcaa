"""Layers that share more than what passes between them are not cut apart; a list must do what forward does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from lockstep.errors import BadInput
from lockstep.stages.survey import Survey

Run = Callable[[nn.Module], Tensor]


class Listed(nn.Module):
    """Four layers of which some do more than the others see."""

    kept: Tensor
    ema: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.norm = nn.BatchNorm1d(4)
        self.table = nn.Parameter(torch.ones(4, 4))
        self.weights: Tensor
        self.register_buffer("weights", torch.ones(4))
        self.register_buffer("ema", torch.zeros(4))
        self.scale = 0.5

    def listed(self) -> list[Any]:
        return [lambda values: values @ self.table.T, *self.linears[1:]]

    def forward(self, values: Any) -> Any:
        for layer in self.listed():
            values = layer(values)
        return values


def run(model: Any) -> Tensor:
    total: Tensor = model(torch.arange(12.0).view(3, 4)).sum()
    return total


def survey(model: Listed, example: Run = run, stages: int = 2) -> Survey:
    return Survey.of(model, lambda _: model.listed(), example, stages)


def joined(model: Listed, example: Run = run) -> list[int]:
    """Return the layers that cannot be cut from the ones before them."""
    return [number for number, facts in enumerate(survey(model, example, 1).facts) if facts.joined]


def test_layers_of_their_own() -> None:
    """What a function reads as `weight.T` it uses."""
    model = Listed()
    assert joined(model) == []
    assert survey(model).facts[0].used == {"parameter/table"}


class KeptSkip(Listed):
    """A skip in an attribute, over two layers."""

    def listed(self) -> list[Any]:
        def keep(values: Tensor) -> Tensor:
            self.kept = self.linears[1](values)
            return self.kept * 2

        return [self.linears[0], keep, self.linears[2], lambda values: values + self.kept]


class KeptForAll(Listed):
    """A tensor that the first lane makes, for all."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: Tensor | None = None

    def mask(self) -> Tensor:
        if self.cache is None:
            self.cache = torch.linspace(0.0, 1.0, 4)
        return self.cache

    def listed(self) -> list[Any]:
        return [*self.linears[:2], lambda values: values * self.mask(), lambda values: values + self.mask()]


class NormedTwice(Listed):
    def listed(self) -> list[Any]:
        return [self.linears[0], self.norm, self.linears[1], self.norm]


class ReadLater(Listed):
    """One layer changes a buffer that another one reads."""

    def listed(self) -> list[Any]:
        def change(values: Tensor) -> Tensor:
            self.ema.mul_(0.9).add_(values.detach().mean(0))
            return values

        return [self.linears[0], change, lambda values: values - self.ema, self.linears[3]]


class Views(Listed):
    """A tensor and a view of it pass; a later layer changes the tensor in place."""

    def listed(self) -> list[Any]:
        return [
            self.linears[0],
            lambda values: (values, values[:, :2]),
            lambda both: (both[0].mul_(2), both[1]),
            lambda both: both[0] + both[1].sum(),
        ]


class Packed(Listed):
    """What one layer passes to the next cannot be sent."""

    def listed(self) -> list[Any]:
        def unpack(packed: PackedSequence) -> Tensor:
            return packed.data

        return [self.linears[0], lambda values: pack_sequence(list(values.unsqueeze(1))), unpack, self.linears[3]]


@pytest.mark.parametrize(
    ("model", "together", "why"),
    [
        (KeptSkip, [2, 3], "uses and does not get"),
        (KeptForAll, [], ""),
        (NormedTwice, [2, 3], "use the buffer norm."),
        (ReadLater, [2], "use the buffer ema, which forward changes"),
        (Views, [2], "changes one of them in place"),
        (Packed, [2], "passes a PackedSequence to the next stage, which cannot be sent"),
    ],
)
def test_layers_that_stay_together(model: type[Listed], together: list[int], why: str) -> None:
    assert joined(model()) == together
    seen = survey(model())
    seen.measure()
    assert seen.cut("auto", 2)[0] not in together
    for layer in together:
        with pytest.raises(BadInput, match="cannot be cut from the layer before it") as refused:
            seen.cut(str(layer), 2)
        assert why in str(refused.value)
    with pytest.raises(BadInput, match=f"the model has {4 - len(together)} that can be cut apart"):
        survey(model(), stages=5 - len(together))


class Output(NamedTuple):
    scores: Tensor


class Returning(Listed):
    """What the last layer returns goes to the loss function, not to a stage."""

    def listed(self) -> list[Any]:
        return [*self.linears, Output]


def test_the_last_layer_may_return_anything() -> None:
    def loss(model: Any) -> Tensor:
        total: Tensor = model(torch.ones(3, 4)).scores.sum()
        return total

    seen = survey(Returning(), loss)
    seen.measure()
    assert [facts.joined for facts in seen.facts] == [""] * 5


def test_a_loss_may_read_values_and_use_tensors() -> None:
    """Those that it uses after the call belong to the last stage too; constant ones before the call to every stage."""

    def loss(model: Any) -> Tensor:
        total: Tensor = model(torch.ones(3, 4) * model.weights).sum() * model.scale + model.table.square().sum()
        return total

    facts = survey(Listed(), loss).facts
    assert [("parameter/table" in one.used, "buffer/weights" in one.used) for one in facts] == [
        (True, True),
        (False, True),
        (False, True),
        (True, True),
    ]


def weight_before(model: Any) -> Tensor:
    total: Tensor = model(torch.ones(3, 4) @ model.table).sum()
    return total


def all_weights(model: Any) -> Tensor:
    return run(model) + torch.stack([weight.sum() for weight in model.parameters()]).sum()


def twice(model: Any) -> Tensor:
    return run(model) + run(model)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (weight_before, "it uses table before"),
        (all_weights, "calls model.parameters(), and with stages no worker has the whole model"),
        (twice, "must call model(...) just once"),
    ],
)
def test_a_loss_that_needs_the_whole_model(loss: Run, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        survey(Listed(), loss)
    assert said in str(refused.value)


class Forgotten(Listed):
    def forward(self, values: Any) -> Any:
        return torch.relu(super().forward(values) - 1.0)


class Drawing(Listed):
    """Does not repeat its own loss: nothing can be compared."""

    calls = 0

    def forward(self, values: Any) -> Any:
        self.calls += 1
        return super().forward(values) * self.calls


class WithoutForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)


def test_a_list_that_does_not_do_what_forward_does() -> None:
    with pytest.raises(BadInput, match="the layers of Forgotten, called one after another, give the loss"):
        survey(Forgotten())
    survey(Drawing())
    Survey.of(WithoutForward(), lambda model: [model.first, model.last], run, 2)
