"""What PyTorch's own strategies cannot train is refused with the reason, before a worker starts where possible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import TensorDataset

from lockstep import Recipe, Trainer, World
from lockstep.data.loader import LaneBatch
from lockstep.errors import BadInput
from lockstep.recipe import plan
from lockstep.registry import STRATEGIES
from lockstep.settings import Settings
from lockstep.stages.survey import Survey
from lockstep.strategies import torch_dp
from lockstep.strategies.limits import Asked, check_limits
from lockstep.strategies.torch_dp import strategy as torch_dp_strategy
from lockstep.strategies.torch_fsdp.fsdp_blocks import find_blocks, first_row
from lockstep.strategies.torch_pipeline.pipelining_limits import (
    always_apart,
    check_lanes_alike,
    check_ties,
    form_of_lane,
    passed_tensors,
)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def data(samples: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(samples, 6, generator=generator), torch.arange(samples) % 3)


def asked(strategy: str, *, device: str | None = "cpu", samples: int = 48, **options: Any) -> Asked:
    """Return a run of a small recipe; options are the settings'."""
    steps = options.pop("steps", None)
    recipe = Recipe(model=net, data=data(samples), loss=loss, optimizer=lambda ps: SGD(ps, lr=0.1), global_batch=16)
    recipe = replace(recipe, lanes=options.pop("lanes", 4), model=options.pop("model", net))
    settings = Settings(strategy=strategy, workers=options.pop("workers", 2), lanes=recipe.lanes, **options)
    counted = plan(recipe, workers=settings.workers, replicas=settings.replicas, samples=samples, steps=steps)
    return Asked(settings, device, recipe, recipe.dataset(), counted, None)


def refusal(one: Asked) -> str:
    with pytest.raises(BadInput) as raised:
        check_limits(one)
    return str(raised.value)


@pytest.mark.parametrize("strategy", ["torch-fsdp", "torch-pipeline", "ddp"])
def test_what_can_run_is_not_refused(strategy: str) -> None:
    check_limits(asked(strategy))


def test_data_parallel_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch_dp, "DRIVERS", (str(tmp_path / "none"),))
    reason = STRATEGIES.get("torch-dp").unavailable()
    assert reason is not None
    assert "several CUDA devices in every step, and here is none" in reason
    monkeypatch.setattr(torch_dp, "DRIVERS", (str(tmp_path),))
    assert STRATEGIES.get("torch-dp").unavailable() is None
    assert "and here the device is cpu" in refusal(asked("torch-dp"))
    check_limits(asked("torch-dp", device=None))
    assert "has BatchNorm of each device alone" in refusal(asked("torch-dp", device=None, sync_batchnorm=True))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "there are 1 for 2 workers: use --workers 1" in refusal(asked("torch-dp", device="cuda:0"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert torch_dp_strategy.cuda_devices("cuda:0", 3) == [0, 1, 2]


def test_data_parallel_takes_the_step_of_one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without devices nn.DataParallel calls the model itself: what is around it is what is tested here."""
    monkeypatch.setattr(torch_dp, "DRIVERS", (str(tmp_path),))
    monkeypatch.setattr(torch_dp_strategy, "cuda_devices", lambda device, workers: list(range(workers)))
    states = []
    for strategy, workers in (("single", 1), ("torch-dp", 2)):
        trainer = Trainer(
            World.alone(threads=1),
            net,
            lambda ps: SGD(ps, lr=0.1),
            loss,
            strategy=strategy,
            workers=workers,
            lanes=4,
            clip=0.5,
        )
        losses = [trainer.step(batch).loss for batch in trainer.batches(data(40), global_batch=16)]
        states.append((losses, trainer.state_dict()))
    (losses, state), (others, came) = states
    assert others == pytest.approx(losses, rel=1e-5)
    assert list(came) == list(state)
    for name, value in state.items():
        torch.testing.assert_close(came[name], value)


class Blocks(nn.Module):
    """A list of blocks, and layers around it; `tied`: the last layer has the first one's weight."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4))])
        self.last = nn.Linear(4, 4)
        if tied:
            self.last.weight = next(self.blocks.parameters())


def test_blocks_are_the_items_of_lists() -> None:
    model = Blocks()
    assert find_blocks(model) == [model.blocks[0], model.blocks[2]]
    chain = net()
    assert find_blocks(chain) == [chain[0], chain[2], chain[4]]
    alone = nn.Bilinear(2, 2, 2)
    assert find_blocks(alone) == []


def test_a_block_with_a_shared_weight_is_left_to_the_model() -> None:
    model = Blocks(tied=True)
    assert find_blocks(model) == [model.blocks[2]]
    twice = nn.Linear(4, 4)
    assert find_blocks(nn.Sequential(twice, nn.ReLU(), twice)) == [twice]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_rows_are_divided_as_torch_does(rows: int, workers: int) -> None:
    chunks = torch.chunk(torch.arange(rows), workers)
    starts = [int(chunk[0]) for chunk in chunks if len(chunk)]
    assert [first_row(rows, workers, rank) for rank in range(len(starts))] == starts
    assert [first_row(rows, workers, rank) for rank in range(len(starts), workers)] == [rows] * (workers - len(starts))


def test_a_parameter_without_a_dimension_cannot_be_divided() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.scale = nn.Parameter(torch.tensor(1.0))

    assert "no parameter without a dimension, and scale is one" in refusal(asked("torch-fsdp", model=Scaled))


def test_replicas_and_few_lanes() -> None:
    assert "gives 2 replicas: use --stages 4" in refusal(asked("torch-pipeline", workers=4, stages=2))
    assert "there are 2 lanes for 4 stages" in refusal(asked("torch-pipeline", workers=4, lanes=2))
    check_limits(asked("torch-pipeline", workers=4, lanes=2, pipeline_schedule="fill-drain"))


def test_a_short_last_batch() -> None:
    assert "the last batch of an epoch has 2 samples, not 16" in refusal(asked("torch-pipeline", samples=50))
    check_limits(asked("torch-pipeline", samples=50, steps=3))
    dropped = asked("torch-pipeline", samples=50)
    recipe = replace(dropped.recipe, drop_last=True)
    check_limits(dropped._replace(recipe=recipe, plan=plan(recipe, workers=2, replicas=1, samples=50)))


def test_lanes_of_other_shapes() -> None:
    lanes = [LaneBatch(0, 2, [torch.ones(2, 5)]), LaneBatch(1, 2, {"texts": torch.ones(2, 7)})]
    with pytest.raises(BadInput, match=r"lane 1 of step 3 has \(2, 7\), where \(2, 5\) was expected: pad all samples"):
        check_lanes_alike(lanes, form_of_lane(lanes[0].data), 3)
    check_lanes_alike(lanes[:1], form_of_lane(lanes[0].data), 3)


@pytest.mark.parametrize(
    ("span", "layers", "stages", "apart"), [(3, 4, 2, True), (2, 4, 2, False), (2, 4, 3, True), (0, 4, 4, False)]
)
def test_layers_that_every_cut_separates(span: int, layers: int, stages: int, apart: bool) -> None:
    assert always_apart(span, layers, stages) is apart


def tied_chain() -> nn.Sequential:
    twice = nn.Linear(8, 8)
    return nn.Sequential(twice, nn.Tanh(), nn.Linear(8, 8), twice)


def test_ties_over_stages() -> None:
    survey = Survey.of(tied_chain(), None, None, 2)
    with pytest.raises(BadInput, match=r"has no tied weights, and two stages use 0\.weight"):
        check_ties(survey, "auto", 2)
    kept = Survey.of(nn.Sequential(*tied_chain(), nn.Linear(8, 8)), None, None, 2)
    check_ties(kept, "auto", 2)
    check_ties(kept, "4", 2)
    with pytest.raises(BadInput, match="has no tied weights"):
        check_ties(kept, "2", 2)


def test_what_passes_between_stages() -> None:
    one, two = torch.ones(1), torch.ones(2)
    assert passed_tensors((one, two), "it") == (one, two)
    assert passed_tensors(one, "it") == (one,)
    with pytest.raises(BadInput, match="between stages, and the layer mix returns a dict: use strategy pipeline"):
        passed_tensors({"inner": one}, "the layer mix")
    with pytest.raises(BadInput, match="returns a tuple of Tensor, int"):
        passed_tensors((one, 3), "the layer mix")
