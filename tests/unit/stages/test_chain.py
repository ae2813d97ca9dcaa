"""A model's layers: found, declared, or refused with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.stages.chain import find_layers
from lockstep.stages.layer_costs import measure_layers, use_of_layers
from lockstep.stages.ownership import share_out


class Chain(nn.Module):
    """Its forward hands on from child to child."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
        self.head = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        inner = self.first(values)
        last: Tensor = self.head(self.body(inner))
        return last


class Glued(Chain):
    """Something is done between two children."""

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.head(torch.relu(self.body(self.first(values))))
        return last


class Before(Chain):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values * 2)


class After(Chain):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * 2


class Skipping(Chain):
    def forward(self, values: Tensor) -> Tensor:
        inner = self.first(values)
        last: Tensor = self.head(inner + self.body(inner))
        return last


class ChangedBetween(Chain):
    """The same object passes on, with other values."""

    def forward(self, values: Tensor) -> Tensor:
        inner = torch.relu_(self.first(values))
        last: Tensor = self.head(self.body(inner))
        return last


class ChangedBefore(Chain):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.mul_(2))


class ChangedAfter(Chain):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values).mul_(2)


class WithoutGradients(Chain):
    def forward(self, values: Tensor) -> Tensor:
        with torch.no_grad():
            inner = self.first(values)
        last: Tensor = self.head(self.body(inner))
        return last


class InLowerPrecision(Chain):
    def forward(self, values: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(values)


def run(model: nn.Module) -> Tensor:
    out: Tensor = model(torch.ones(3, 4)).sum()
    return out


def names(model: nn.Module, declared: Callable[[Any], list[Any]] | None = None) -> list[str]:
    return [layer.name for layer in find_layers(model, declared, run)]


def test_a_sequential_is_cut_at_every_depth() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 2))))
    assert names(model) == ["0", "1.0", "1.1.0"]


def test_a_hook_belongs_to_the_call() -> None:
    """A Sequential with a hook is not opened: the hook would be lost."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    inner.register_forward_hook(lambda module, arguments, returned: returned * 2)
    assert names(nn.Sequential(nn.Linear(4, 4), inner)) == ["0", "1"]


def test_a_chain_of_children_is_found() -> None:
    assert names(Chain()) == ["first", "body.0", "body.1.0", "body.1.1", "head"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Glued, "head does not get just what body returned"),
        (Before, "does not pass its own arguments to first as they are"),
        (After, "does not return just what head returned"),
        (Skipping, "head does not get just what body returned"),
        (ChangedBetween, "what first returned is changed before body gets it"),
        (ChangedBefore, "does not pass its own arguments to first as they are"),
        (ChangedAfter, "what head returned is changed before it is returned"),
        (WithoutGradients, "first is called in a block `with torch.no_grad()`"),
        (InLowerPrecision, "first is called in a block `with torch.autocast(...)`"),
    ],
)
def test_what_broke_the_chain_and_what_to_write(model: type[nn.Module], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        names(model())
    assert said in str(refused.value)
    assert "Recipe(stages=lambda model: [model.first, *model.body, model.head])" in str(refused.value)


class Numbered(nn.Module):
    """Calls the layers of a list one by one, and something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.blocks[1](2 * self.blocks[0](values))
        return last


def test_the_line_to_write_is_python() -> None:
    with pytest.raises(BadInput) as refused:
        names(Numbered())
    assert "Recipe(stages=lambda model: [model.blocks[0], model.blocks[1]])" in str(refused.value)


class Named(nn.Module):
    """Takes an argument by its name; `changed`: and passes on another one."""

    def __init__(self, *, changed: bool) -> None:
        super().__init__()
        self.first, self.head, self.changed = nn.Bilinear(4, 4, 4), nn.Linear(4, 2), changed

    def forward(self, values: Tensor, *, input2: Tensor) -> Tensor:
        last: Tensor = self.head(self.first(values, input2=input2 * 2 if self.changed else input2))
        return last


def test_arguments_by_name() -> None:
    def run_named(model: nn.Module) -> Tensor:
        out: Tensor = model(torch.ones(3, 4), input2=torch.ones(3, 4)).sum()
        return out

    assert [layer.name for layer in find_layers(Named(changed=False), None, run_named)] == ["first", "head"]
    with pytest.raises(BadInput, match="does not pass its own arguments to first as they are"):
        find_layers(Named(changed=True), None, run_named)


def test_a_value_whose_content_is_replaced() -> None:
    """The same dict passes on, with another number in it."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pack, self.unpack = Pack(), Unpack()

        def forward(self, values: Tensor) -> Tensor:
            both = self.pack(values)
            both["scale"] = 3.0
            out: Tensor = self.unpack(both)
            return out

    class Pack(nn.Module):
        def forward(self, values: Tensor) -> dict[str, Any]:
            return {"values": values, "scale": 1.0}

    class Unpack(nn.Module):
        def forward(self, both: dict[str, Any]) -> Tensor:
            out: Tensor = both["values"] * both["scale"]
            return out

    with pytest.raises(BadInput, match="what pack returned is changed before unpack gets it"):
        names(Scaled())


def test_declared() -> None:
    def listed(model: Glued) -> list[Any]:
        return [[model.first, torch.relu], *model.body, lambda values: values.relu(), model.head]

    assert names(Glued(), listed) == ["first...relu", "body.0", "body.1", "function 3", "head"]


def test_a_declared_group_is_one_layer() -> None:
    """A list, a tuple or a Sequential that is written into the list is never cut; `*` opens one."""
    listed = [
        lambda model: [[model.first, model.body[0]], model.body[1], model.head],
        lambda model: [(model.first, model.body[0]), *model.body[1:], model.head],
        lambda model: [model.first, model.body, model.head],
    ]
    assert [names(Chain(), one) for one in listed] == [
        ["first...body.0", "body.1", "head"],
        ["first...body.0", "body.1", "head"],
        ["first", "body", "head"],
    ]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (lambda model: [], "expected a list of modules and functions"),
        (lambda model: [model.first, 3], "item 1 of Recipe(stages=...) is a int"),
        (lambda model: [model.frist], "has no attribute 'frist'"),
        (lambda model: [model["first"]], "TypeError: 'Chain' object is not subscriptable"),
        (lambda model: [model.body[7]], "IndexError: index 7 is out of range"),
        (lambda model: [model.first, [], model.head], "item 1 of Recipe(stages=...) is empty"),
    ],
)
def test_bad_lists(listed: Callable[[Any], list[Any]], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        names(Chain(), listed)
    assert said in str(refused.value)


def test_a_layer_that_cannot_take_what_it_gets() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 2))
    with pytest.raises(BadInput, match=r"the layer 1 cannot take what 0 passes to it \(float32 \(3, 3\)\)"):
        use_of_layers(model, find_layers(model, None, None), run)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 4))
        self.inner = nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4)

    def listed(self) -> list[Any]:
        return [lambda values: values @ self.table, self.inner, lambda values: values @ self.table.t()]

    def forward(self, values: Tensor) -> Tensor:
        out: Any = values
        for layer in self.listed():
            out = layer(out)
        result: Tensor = out
        return result


def test_what_functions_use_is_seen() -> None:
    model = Tied()
    layers = find_layers(model, lambda _: model.listed(), run)
    used = [facts.used for facts in use_of_layers(model, layers, run)]
    inner = {"parameter/inner.weight", "parameter/inner.bias"}
    assert used == [{"parameter/table"}, inner, {"parameter/table"}]
    owner = share_out([1, 2], used, sorted(set().union(*used)), ["parameter/spare.weight"])
    assert owner.users["parameter/table"] == (0, 2)
    assert (owner.before("parameter/table", 2), owner.after("parameter/table", 0)) == (0, 2)
    assert owner.owned(0) == {"parameter/table", "parameter/spare.weight"}
    assert owner.present(2) == {"parameter/table"}


def test_a_parameter_that_nobody_uses() -> None:
    with pytest.raises(BadInput, match="no stage uses the parameter spare"):
        share_out([1], [{"parameter/a"}, {"parameter/b"}], ["parameter/a", "parameter/b", "parameter/spare"], [])


def test_measuring_leaves_no_trace() -> None:
    """Times are taken in the real process: buffers, gradients and the random stream are as before."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    layers = find_layers(model, None, run)
    torch.manual_seed(5)
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    facts = use_of_layers(model, layers, run)
    measure_layers(model, layers, facts, run)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [one.parameters for one in facts] == [40, 16, 0, 18]
    assert [one.passes for one in facts] == [96, 96, 96, 24]
    assert all(one.forward > 0 for one in facts)


def test_a_layer_that_comes_again_is_called_again() -> None:
    twice = nn.Linear(4, 4)
    model = nn.Sequential(twice, nn.Sequential(nn.ReLU(), twice))
    layers = find_layers(model, None, None)
    assert [layer.name for layer in layers] == ["0", "1.0", "1.1"]
    assert layers[2].call is twice


def test_what_a_layer_keeps_is_counted_once() -> None:
    """A ReLU keeps its output, which the next layer keeps as its input: one tensor, counted with the ReLU."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    layers = find_layers(model, None, run)
    facts = use_of_layers(model, layers, run)
    measure_layers(model, layers, facts, run, runs=0)
    assert [one.weights for one in facts] == [4 * 40, 0, 4 * 18]
    assert [one.keeps for one in facts] == [4 * 3 * 4, 4 * 3 * 8, 0]
    assert [one.forward for one in facts] == [0.0, 0.0, 0.0]
