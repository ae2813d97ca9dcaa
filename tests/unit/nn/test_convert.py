"""Converting to SyncBatchNorm and back, and a layer with nobody to meet, in one process."""

from __future__ import annotations

import copy
import pickle
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lockstep.data.loader import Batch, LaneBatch
from lockstep.errors import BadInput
from lockstep.nn import SyncBatchNorm
from lockstep.nn.convert import without_samples
from lockstep.train.synchronise import check_sync_batchnorm, fill_up, with_sync_batchnorm


def net() -> nn.Sequential:
    shared = nn.BatchNorm2d(4, momentum=None)
    return nn.Sequential(nn.Conv2d(3, 4, 3), shared, nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.ReLU()), shared)


def test_there_and_back_keeps_everything() -> None:
    model = net()
    model[2].eval()
    called: list[str] = []
    model[1].register_forward_hook(lambda *_: called.append("hook"))
    before, parameters, kinds = dict(model.state_dict()), list(model.parameters()), [type(m) for m in model.modules()]
    converted = cast(nn.Sequential, SyncBatchNorm.convert_sync_batchnorm(model))
    assert converted is model
    assert isinstance(model[1], SyncBatchNorm)
    assert model[1] is model[3]
    inner = cast(nn.Sequential, model[2])[0]
    assert (model[1].momentum, model[1].training, inner.training) == (None, True, False)
    assert list(model.state_dict()) == list(before)
    assert all(mine is theirs for mine, theirs in zip(model.parameters(), parameters, strict=True))
    model(torch.randn(2, 3, 5, 5))
    assert called == ["hook", "hook"]
    SyncBatchNorm.revert(model)
    assert [type(module) for module in model.modules()] == kinds
    assert not set(vars(model[1])) - set(vars(nn.BatchNorm2d(4)))
    model.load_state_dict(before)


def test_a_model_that_is_itself_a_batchnorm() -> None:
    plain = nn.BatchNorm1d(3)
    sync = SyncBatchNorm.convert_sync_batchnorm(plain)
    assert isinstance(sync, SyncBatchNorm)
    assert SyncBatchNorm.convert_sync_batchnorm(sync) is sync
    assert type(SyncBatchNorm.revert(sync)) is nn.BatchNorm1d


def test_torchs_own_is_converted_too() -> None:
    assert isinstance(SyncBatchNorm.convert_sync_batchnorm(nn.SyncBatchNorm(3)), SyncBatchNorm)


class Own(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input) + 1


@pytest.mark.parametrize(
    ("layer", "words"),
    [(Own(3), "0 is a Own with its own forward"), (nn.LazyBatchNorm1d(), "without a size: run one batch through")],
)
def test_what_cannot_be_converted_is_named(layer: nn.Module, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))


def test_what_cannot_be_reverted_is_named() -> None:
    with pytest.raises(BadInput, match="created as a SyncBatchNorm"):
        SyncBatchNorm.revert(SyncBatchNorm(3))


@pytest.mark.parametrize(
    "options", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=str
)
@pytest.mark.parametrize("training", [True, False])
def test_alone_it_is_batchnorm(options: dict[str, Any], training: bool) -> None:
    layers: list[_BatchNorm] = [nn.BatchNorm2d(3, **options), SyncBatchNorm(3, **options)]
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    stock, ours = (layer.train(training)(x) for layer in layers)
    assert torch.equal(stock, ours)
    assert list(layers[0].state_dict()) == list(layers[1].state_dict())
    layers[1].load_state_dict(layers[0].state_dict())


def test_copies_and_pickles() -> None:
    layer = SyncBatchNorm(3)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(torch.eye(3)), layer(torch.eye(3)))


def test_without_samples_puts_modes_back() -> None:
    model = cast(nn.Sequential, SyncBatchNorm.convert_sync_batchnorm(net()))
    model[2].eval()
    layers = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    with without_samples(model):
        assert [module.training for module in model.modules()] == [False, False, True, False, False, False]
        assert [layer.silent for layer in layers] == [True, False]
    assert [module.training for module in model.modules()] == [True, True, True, False, False, False]
    assert not any(layer.silent for layer in layers)


def test_a_model_without_batchnorm_is_refused() -> None:
    with pytest.raises(BadInput, match="the model has no BatchNorm layer"):
        with_sync_batchnorm(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("lanes", "workers", "global_batch", "advice"),
    [
        (3, 2, None, "use --lanes 4"),
        (4, 3, None, "use --lanes 3"),
        (4, 3, 48, "use --lanes 3"),
        (5, 3, 48, "use --lanes 6"),
        (4, 3, 64, "use a number of workers that divides the global batch of 64"),
    ],
)
def test_lanes_that_cannot_run_side_by_side_are_refused(
    lanes: int, workers: int, global_batch: int | None, advice: str
) -> None:
    """What is advised is not refused in its turn: the lanes divide the global batch, too."""
    with pytest.raises(BadInput, match=f"lanes={lanes} gives {workers} workers different numbers of them: {advice}$"):
        check_sync_batchnorm("ddp", lanes, workers, global_batch)


def test_threads_have_no_sync_batchnorm_and_say_so() -> None:
    with pytest.raises(BadInput, match="the threads of strategy dp have BatchNorm of a lane each; use ddp"):
        check_sync_batchnorm("dp", 2, 2)
    check_sync_batchnorm("dp", 2, 1)
    check_sync_batchnorm("single", 2, 1)
    check_sync_batchnorm("ddp", 4, 2, 64)


def test_fillers_make_the_workers_even() -> None:
    batch = Batch(3, 0, 5, (LaneBatch(2, 1, "data"),))
    assert fill_up(batch, 1, lambda: "sample") is batch
    filled = fill_up(batch, 3, lambda: "sample")
    assert [(lane.samples, lane.data) for lane in filled.lanes] == [(1, "data"), (0, "sample"), (0, "sample")]
