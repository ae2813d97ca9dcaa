"""A step that fails on all ranks of several hosts leaves no message behind that the next one would wait for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn, optim

from lockstep import Trainer
from lockstep.data.loader import Batch, LaneBatch
from tests.contract.groups import IN_SECTIONS, started_group
from tests.contract.lane_cases import world_of
from tests.devices import only_cpu


def trained(rank: int, size: int, hosts: list[int], *, fails: bool) -> str:
    """Return the digest after one step, before which another may have failed in its forward."""
    troubles = iter([True] if fails else [])

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if next(troubles, False):
            raise RuntimeError("it broke")
        return model(batch[0]).square().mean()  # type: ignore[no-any-return]

    trainer = Trainer(
        world_of(rank, size, "gloo", hosts),
        lambda: nn.Sequential(nn.Linear(4, 3000), nn.BatchNorm1d(3000)),
        lambda parameters: optim.SGD(parameters, lr=1e-3),
        loss,
        strategy="ddp",
        lanes=size,
    )
    batch = Batch(0, 0, 2 * size, (LaneBatch(rank, 2, [torch.arange(8.0).view(2, 4) + rank]),))
    if fails:
        with pytest.raises(RuntimeError, match="it broke"):
            trainer.step(batch)
    trainer.step(batch)
    return trainer.digest()


def both(rank: int, size: int, hosts: list[int]) -> list[str]:
    return [trained(rank, size, hosts, fails=fails) for fails in (False, True)]


@only_cpu
@pytest.mark.parametrize("kind", ["gloo", f"gloo{IN_SECTIONS}"])
@pytest.mark.parametrize("hosts", [[1, 1], [2, 1]], ids=["1+1", "2+1"])
def test_the_next_step_is_as_if_it_had_not_been(kind: str, hosts: list[int]) -> None:
    with started_group(kind, hosts) as (ranks, _):
        digests = {digest for one in ranks.run(both, hosts) for digest in one}
    assert len(digests) == 1
