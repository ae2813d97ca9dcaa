"""What a step on a device asks of the host: waits and copies, counted; and of torch: deterministic kernels."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep import Loss, Trainer
from lockstep.errors import BadInput, LockstepError, NotFinite
from lockstep.train.determinism import deterministic
from lockstep.train.steps import joined
from tests.contract.lane_cases import CASES, LANES, data, make, mean, net, sgd, world_of
from tests.devices import alone, only_devices
from tests.ranks import Ranks

pytestmark = only_devices


def counted(trainer: Trainer, name: str) -> list[dict[str, int]]:
    """Return what each full step asked for, the first two left out."""
    import pretend_device

    steps, case = [], CASES[name]
    for batch in trainer.batches(case.data(), global_batch=case.global_batch):
        before = Counter(pretend_device.counts())
        trainer.step(batch)
        after = Counter(pretend_device.counts())
        if batch.samples == case.global_batch:
            steps.append({key: after[key] - before[key] for key in ("waits", "to_host", "to_device")})
    return steps[2:]


@pytest.mark.parametrize("name", ["sgd", "adamw", "tokens"])
def test_a_step_of_one_worker_waits_once(name: str) -> None:
    """For the losses of its eight lanes; the batch was copied ahead, from pinned memory."""
    for step in counted(make(name, "single", alone(), 1), name):
        assert step == {"waits": 1, "to_host": 1, "to_device": 0}


def test_clipping_waits_once_more() -> None:
    for step in counted(make("clipped groups", "single", alone(), 1), "clipped groups"):
        assert step["waits"] == 2


def counted_here(rank: int, size: int, name: str, options: dict[str, Any]) -> list[dict[str, int]]:
    return counted(make(name, world=world_of(rank, size, "pccl", [size]), workers=size, **options), name)


def test_a_step_of_several_workers_waits_once_too() -> None:
    with Ranks(2, "pccl") as ranks:
        for steps in ranks.run(counted_here, "adamw", {"strategy": "ddp"}):
            for step in steps:
                assert step == {"waits": 1, "to_host": 1, "to_device": 0}


def test_a_pipeline_waits_for_headers_only() -> None:
    """A lane's activations and gradients stay on the devices; what describes them goes through the host."""
    with Ranks(2, "pccl") as ranks:
        first, last = ranks.run(counted_here, "chain", {"strategy": "pipeline"})
    for step in first:
        assert step == {"waits": 3 * LANES + 1, "to_host": LANES + 1, "to_device": 2 * LANES}
    for step in last:
        assert step == {"waits": 4 * LANES + 1, "to_host": 2 * LANES + 1, "to_device": 2 * LANES}


NAP = 1000.0
"""Seconds for which a device is busy, at once: more than anything else takes here."""


def sleepy(model: nn.Module, batch: list[Tensor]) -> Tensor:
    import pretend_device

    pretend_device.nap(NAP)
    return mean(model, batch)


class SleepySGD(torch.optim.SGD):
    """An update that takes the device half a nap."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        import pretend_device

        pretend_device.nap(NAP / 2)
        super().step(closure)


def naps(seconds: float) -> float:
    """Return how many naps, and halves, a part had: what it had beside them is less than a tenth of one."""
    halves = round(seconds / NAP * 2)
    assert abs(seconds - halves * NAP / 2) < NAP / 10
    return halves / 2


@pytest.mark.parametrize(("strategy", "workers", "update"), [("single", 1, 0.5), ("dp", 2, 0.0)])
def test_a_part_has_the_device_s_time_and_not_that_of_the_host_s_wait(
    strategy: str, workers: int, update: float
) -> None:
    """The update of a step runs on after the host's wait, and is read with the next step's."""
    import pretend_device

    options: dict[str, Any] = {"strategy": strategy, "lanes": LANES, "workers": workers}
    kind = SleepySGD if update else torch.optim.SGD  # devices of `dp` wait for each other's update when they copy
    trainer = Trainer(alone(), net, lambda ps: kind(ps, lr=0.1), sleepy, **options)
    steps = []
    for batch in trainer.batches(data(), global_batch=32, drop_last=True):
        steps.append(trainer.step(batch))
        pretend_device.nap(NAP)  # what is done between two steps is no part of one
    for number, step in enumerate(steps):
        parts = {part: naps(seconds) for part, seconds in step.seconds.items()}
        assert parts.pop("forward") == LANES // workers
        assert parts.pop("optimizer") == (update if number else 0.0)
        assert not any(parts.values())


class SleepyBackward(torch.autograd.Function):
    """Nothing, whose backward takes the device a nap."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        import pretend_device

        pretend_device.nap(NAP)
        return gradient


class TwoSections(nn.Module):
    """The last layer's gradients can leave before the nap in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 1024), nn.Linear(1024, 512)

    def forward(self, values: Tensor) -> Tensor:
        hidden: Tensor = SleepyBackward.apply(self.first(values.flatten(1)))  # type: ignore[no-untyped-call]
        last: Tensor = self.last(hidden)
        return last


def hidden_here(rank: int, size: int) -> list[tuple[float, float]]:
    world = world_of(rank, size, "pccl", [size])
    trainer = Trainer(world, TwoSections, sgd(), mean, strategy="ddp", lanes=4)
    steps = [trainer.step(batch) for batch in trainer.batches(data(), global_batch=32, drop_last=True)]
    return [(step.hidden, step.seconds["backward"]) for step in steps]


def test_what_backward_hides_is_in_the_device_s_time_too() -> None:
    """Gradients leave in the backward of the last of two lanes."""
    with Ranks(2, "pccl") as ranks:
        for steps in ranks.run(hidden_here):
            assert [(naps(hidden), naps(backward)) for hidden, backward in steps] == [(1, 2)] * 3


def test_laps_after_the_wait_are_read_with_the_next_step() -> None:
    trainer = make("sgd", "single", alone(), 1)
    batches = trainer.batches(CASES["sgd"].data(), global_batch=32)
    first, second = (joined(trainer.step(next(batches)).spans) for _ in range(2))
    head = ["data", *["forward", "backward"] * LANES]
    assert [part for part, *_ in first] == head
    assert [part for part, *_ in second] == ["backward", "optimizer", "backward", "optimizer", *head]
    for spans in (first, second):
        starts = [start for _, start, _, _ in spans]
        assert starts == sorted(starts)
    assert first[0][1] >= 0.0


def test_steps_that_are_not_measured_have_no_events() -> None:
    trainer = make("sgd", "single", alone(), 1, measure=False)
    stats = trainer.step(next(trainer.batches(CASES["sgd"].data(), global_batch=32)))
    assert not stats.seconds
    assert not stats.spans


def test_batches_are_copied_ahead_of_their_step() -> None:
    import pretend_device

    trainer = make("sgd", "single", alone(), 1)
    batches = trainer.batches(CASES["sgd"].data(), global_batch=32)
    next(batches)
    before = pretend_device.counts()
    batch = next(batches)
    after = pretend_device.counts()
    assert after["to_device"] - before["to_device"] == 2 * LANES, "of the batch after this one"
    assert after["waits"] == before["waits"]
    assert {one.device.type for lane in batch.lanes for one in lane.data} == {"pretend"}


def no_number(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return mean(model, batch) * math.inf


def below_zero(model: nn.Module, batch: list[Tensor]) -> Loss:
    return Loss(mean(model, batch), batch[1].sum() * 0 - 1)


@pytest.mark.parametrize(
    ("loss", "error", "said"),
    [(no_number, NotFinite, "the loss is inf at step 0, lane 0"), (below_zero, BadInput, "cannot be negative")],
)
@pytest.mark.parametrize(("strategy", "workers"), [("single", 1), ("dp", 2)])
def test_losses_are_checked_before_weights_change(
    loss: Any, error: type[Exception], said: str, strategy: str, workers: int
) -> None:
    trainer = Trainer(alone(), net, sgd(), loss, strategy=strategy, lanes=8, workers=workers)
    before = [parameter.detach().cpu() for parameter in trainer.model.parameters()]
    with pytest.raises(error, match=said):
        trainer.step(next(trainer.batches(data(), global_batch=32)))
    assert all(
        torch.equal(*pair) for pair in zip(before, map(torch.Tensor.cpu, trainer.model.parameters()), strict=True)
    )


class Counting(nn.Module):
    """Uses an operator that has no deterministic form."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 5)

    def forward(self, values: Tensor) -> Tensor:
        flat = values.flatten(1)
        total: Tensor = self.inner(flat) + torch.histc(flat.detach(), 5)
        return total


def test_an_operator_without_a_deterministic_form_ends_the_run_by_name() -> None:
    trainer = Trainer(alone(), Counting, sgd(), mean, lanes=4)
    with pytest.raises(LockstepError, match=r"histc_pretend has no deterministic form on pretend.*--inexact"):
        trainer.step(next(trainer.batches(data(), global_batch=32)))
    assert not torch.are_deterministic_algorithms_enabled()
    inexact = Trainer(alone(), Counting, sgd(), mean, lanes=4, exact=False)
    inexact.step(next(inexact.batches(data(), global_batch=32)))


def test_what_was_set_is_put_back() -> None:
    def now() -> tuple[bool, int]:
        return torch.backends.cudnn.benchmark, torch.get_deterministic_debug_mode()

    torch.backends.cudnn.benchmark = True
    torch.set_deterministic_debug_mode("warn")
    try:
        with deterministic(alone()):
            assert now() == (False, 2)
        assert now() == (True, 1)
    finally:
        torch.backends.cudnn.benchmark = False
        torch.set_deterministic_debug_mode("default")


def test_another_precision_of_products_is_refused_at_a_checkpoint(tmp_path: Any) -> None:
    trainer = make("sgd", "single", alone(), 1)
    trainer.save(tmp_path / "one.safetensors")
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(BadInput, match="products highest, and here it is high"):
            make("sgd", "single", alone(), 1).load(tmp_path / "one.safetensors")
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_model_partly_on_another_device_is_one_message() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 5)
            self.table = [torch.ones(5)]

        def forward(self, values: Tensor) -> Tensor:
            return F.relu(self.inner(values.flatten(1)) + self.table[0])

    trainer = Trainer(alone(), Apart, sgd(), mean, lanes=4)
    with pytest.raises(RuntimeError, match="same device"):
        trainer.step(next(trainer.batches(data(), global_batch=32)))
