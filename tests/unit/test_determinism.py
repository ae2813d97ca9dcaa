"""Operators that scatter: on two threads their gradients are the same bits every time, as a step asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep import World
from lockstep.settings import Settings
from lockstep.train.determinism import deterministic, needed, refusal

ROWS, PLACES, WIDTH = 60_000, 40, 8
"""Many rows for few places: the threads meet at each of them."""


def places() -> Tensor:
    return torch.arange(ROWS) * 7919 % PLACES


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def embedding(table: Tensor) -> Tensor:
    return F.embedding(places(), table) * values(ROWS, WIDTH)


def indexed(table: Tensor) -> Tensor:
    return table[places()] * values(ROWS, WIDTH)


def index_add(table: Tensor) -> Tensor:
    return torch.zeros_like(table).index_add(0, places(), values(ROWS, WIDTH) * table.sum()) * table


def scatter(table: Tensor) -> Tensor:
    to = places()[:, None].expand(ROWS, WIDTH)
    return torch.zeros_like(table).scatter_add(0, to, values(ROWS, WIDTH) * table.sum()) * table


def gather(table: Tensor) -> Tensor:
    return table.gather(0, places()[:, None].expand(ROWS, WIDTH)) * values(ROWS, WIDTH)


def interpolate(table: Tensor) -> Tensor:
    return F.interpolate(table[None, None], size=(400, 300), mode="bilinear") * values(1, 1, 400, 300)


@pytest.mark.parametrize("operator", [embedding, indexed, index_add, scatter, gather, interpolate])
def test_two_threads_give_the_same_bits_every_time(operator: Callable[[Tensor], Tensor]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        world = World.alone(threads=2)
        gradients = set()
        for _ in range(8):
            table = values(PLACES, WIDTH).requires_grad_()
            with deterministic(world):
                torch.autograd.backward(operator(table).sum())
            assert table.grad is not None
            gradients.add(table.grad.numpy().tobytes())
        assert len(gradients) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("strategy", "exact", "device", "threads", "asked"),
    [
        ("single", True, "cpu", 1, False),
        ("single", True, "cpu", 2, True),
        ("ddp", True, "cuda:1", 1, True),
        ("ddp", False, "cuda:1", 1, False),
        ("torch-ddp", True, "cuda:1", 1, False),
    ],
)
def test_who_asks_for_deterministic_kernels(strategy: str, exact: bool, device: str, threads: int, asked: bool) -> None:
    world = World.alone(device=device, threads=threads)
    assert needed(Settings(strategy=strategy, exact=exact), world) is asked


def test_it_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_LEAVE", "determinism")
    assert not needed(Settings(strategy="single"), World.alone(threads=2))


def test_what_is_told_of_an_operator_without_a_deterministic_form() -> None:
    error = RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set ...")
    told = str(refusal(error, World.alone(device="cuda:0")))
    assert told.startswith("cumsum_cuda_kernel has no deterministic form on cuda")
    assert "--inexact" in told
    assert refusal(RuntimeError("something else"), World.alone()) is None
