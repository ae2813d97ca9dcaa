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
