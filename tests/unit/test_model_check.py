"""Models that cannot be trained as they are get one message that says what to change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstep import Trainer
from lockstep.errors import BadInput
from lockstep.train.model_check import check_batchnorm, check_initialised
from tests.contract.lane_cases import mean, sgd
from tests.devices import alone


def test_lazy_layers_are_refused_until_they_have_a_size() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    with pytest.raises(BadInput, match=r"6 lazy weights without a size \(0\.weight\): call it once on an example"):
        check_initialised(model)
    with pytest.raises(BadInput, match=r"lazy weights without a size"):
        Trainer(alone(), lambda: nn.Sequential(nn.LazyLinear(3)), sgd(), mean, strategy="single")
    model(torch.ones(2, 4))
    check_initialised(model)


@pytest.mark.parametrize(
    ("device", "workers", "exact", "why"),
    [
        ("cpu", 1, True, ""),
        ("cpu", 2, True, "runs on accelerators only"),
        ("cpu", 2, False, "runs on accelerators only"),
        ("cuda:0", 2, True, "makes the bits depend on the number of workers"),
        ("cuda:0", 2, False, ""),
    ],
)
def test_torchs_own_sync_batchnorm(device: str, workers: int, exact: bool, why: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4))
    if not why:
        check_batchnorm(model, device=device, workers=workers, exact=exact)
        return
    with pytest.raises(BadInput, match=f"the layer 1 is torch's SyncBatchNorm, which {why}: use nn.BatchNorm with"):
        check_batchnorm(model, device=device, workers=workers, exact=exact)
