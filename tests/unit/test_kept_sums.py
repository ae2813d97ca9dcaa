"""Sums of large gradients that stay where backward made them: the tree's sums, in memory that nobody else sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lockstep.lanes.flat_layout import lay_out, slots_within
from lockstep.lanes.tree import Node, children, folding
from lockstep.strategies.flat_model import FlatModel
from lockstep.strategies.sliced_optimizer import GradientRun, set_gradients, slice_optimizer
from lockstep.torch_compat.tensors import shares_storage

SIDE = 200


class Shared(nn.Module):
    """Two large weights whose gradients are one piece of memory, one that is not always used, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(SIDE, SIDE))
        self.small = nn.Parameter(torch.zeros(3))
        self.flat = nn.Parameter(torch.zeros(SIDE * SIDE))
        self.rare = nn.Parameter(torch.zeros(SIDE, SIDE))

    def forward(self, value: Tensor, *, rare: bool) -> Tensor:
        total = ((self.one + self.flat.view(SIDE, SIDE)) * value).sum() + (self.small * value[0, :3]).sum()
        return total + (self.rare * value).sum() if rare else total


def tree_sum(values: list[Tensor]) -> Tensor:
    def add(node: Node) -> Tensor:
        if node.hi - node.lo == 1:
            return values[node.lo]
        left, right = children(node)
        return add(left) + add(right)

    return add(Node(0, len(values)))


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8])
def test_the_sums_of_the_tree(lanes: int) -> None:
    model = Shared()
    model_flat = FlatModel(model, [(0,)] * 4, 1, keep=True)
    (section,) = model_flat.sections
    weights = torch.zeros(section.numel)
    model_flat.attach([weights], fill=True)
    folds, count = folding(Node(0, lanes))
    buffers = [(torch.zeros(section.numel),) for _ in range(count)]
    for step in range(2):
        values = [torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(9 * step + n)) for n in range(lanes)]
        used = [lane % 3 == 1 for lane in range(lanes)]
        for fold, value, use in zip(folds, values, used, strict=True):
            model_flat.begin(fold, buffers)
            model(value.clone(), rare=use).backward()
            model_flat.end()
        totals = model_flat.sums(0, buffers[0][0])
        assert [total.start for total in totals] == [stretch.start for stretch in model_flat.stretches[0]]
        whole = torch.cat([total.values for total in totals])
        assert len(whole) == section.numel
        one, small, flat, rare = (whole[slot.start : slot.stop].view(slot.shape) for slot in section.slots)
        expected = tree_sum(values)
        assert torch.equal(one, expected)
        assert torch.equal(flat, expected.flatten())
        assert torch.equal(small, expected[0, :3])
        zero = torch.zeros(SIDE, SIDE)
        assert torch.equal(rare, tree_sum([v if use else zero for v, use in zip(values, used, strict=True)]))


class TwoWeights(nn.Module):
    """A large weight and a small one, both always used."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.zeros(SIDE, SIDE))
        self.small = nn.Parameter(torch.zeros(SIDE))

    def forward(self, value: Tensor) -> Tensor:
        return (self.large * value).sum() + (self.small * value[0]).sum()


def halved_sum(sums: list[Tensor]) -> Tensor:
    for other in sums[1:]:
        sums[0].add_(other)
    return sums[0].div_(2.0)


def whole_sums(lanes: int, *, finish: bool, one_by_one: bool) -> tuple[Tensor, list[bool]]:
    """Return the sums of the second step, and which stretches were finished: each sum then was halved."""
    model = TwoWeights()
    flat = FlatModel(model, [(0,)] * 2, 1, keep=True)
    (section,) = flat.sections
    flat.attach([torch.zeros(section.numel)], fill=True)
    folds, count = folding(Node(0, lanes))
    buffers = [(torch.zeros(section.numel),) for _ in range(count)]
    for step in range(2):
        values = [torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(9 * step + n)) for n in range(lanes)]
        losses = [model(value) for value in values]
        assert flat.one_by_one == (step > 0)
        turns = [[model.large], [model.small]] if step and one_by_one else [[model.large, model.small]]
        for weights in turns:
            flat.finish_sums(None)
            for number, (fold, loss) in enumerate(zip(folds, losses, strict=True)):
                if number == lanes - 1 and finish:
                    flat.finish_sums(halved_sum)
                if step and one_by_one:
                    flat.begin_some(weights, fold, buffers)
                    torch.autograd.backward(loss, inputs=weights, retain_graph=True)
                    flat.end_some(weights, buffers)
                else:
                    flat.begin(fold, buffers)
                    loss.backward(retain_graph=True)
                    flat.end()
        totals = flat.sums(0, buffers[0][0])
    return torch.cat([total.values for total in totals]), [total.finished for total in totals]


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 6, 8])
def test_weight_by_weight_the_sums_are_the_same(lanes: int) -> None:
    wanted, _ = whole_sums(lanes, finish=False, one_by_one=False)
    assert torch.equal(whole_sums(lanes, finish=False, one_by_one=True)[0], wanted)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5, 8])
def test_the_last_lane_finishes_large_sums(lanes: int, one_by_one: bool) -> None:
    """But not one that starts a sum of its own, to which further pieces of a gradient may come."""
    wanted, _ = whole_sums(lanes, finish=False, one_by_one=one_by_one)
    sums, finished = whole_sums(lanes, finish=True, one_by_one=one_by_one)
    assert any(finished) == (lanes > 1)
    large = slice(0, SIDE * SIDE)
    assert torch.equal(sums[large], wanted[large] / 2.0 if any(finished) else wanted[large])
    assert torch.equal(sums[SIDE * SIDE :], wanted[SIDE * SIDE :])


def test_chunks_have_the_gradient_of_their_elements() -> None:
    flat = FlatModel(Shared(), [(0,)] * 4, 1, keep=True)
    (section,) = flat.sections
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    weights = torch.zeros(section.numel)
    chunks = slice_optimizer(optimizer, [0], [weights], flat.stretches)
    numbers = torch.arange(float(section.numel))
    runs = [GradientRun(0, part.start, numbers[part.start : part.stop]) for part in flat.stretches[0]]
    set_gradients(chunks, runs)
    optimizer.step()
    assert torch.equal(weights, -numbers)


def test_memory_that_others_see() -> None:
    alone = torch.zeros(8)
    assert not shares_storage(alone)
    assert shares_storage(alone[2:])
    turned = alone.view(2, 4)
    assert shares_storage(alone)
    assert shares_storage(turned)


@pytest.mark.parametrize("span", [(0, 10), (5, 40), (16, 17), (32, 64), (40, 41), (63, 2048)])
def test_slots_between_two_positions(span: tuple[int, int]) -> None:
    (section,) = lay_out([(10,), (0,), (16,), (20,), (1500,)], ["a"] * 5, 1)
    found = slots_within(section.slots, *span)
    for slot in section.slots:
        overlaps = slot.start < span[1] and slot.stop > span[0]
        assert overlaps <= (slot in found)
        if slot in found:
            assert slot.start < span[1]
            assert slot.stop >= span[0]
