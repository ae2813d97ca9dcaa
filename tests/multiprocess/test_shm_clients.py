"""Clients of torch.distributed train the same over shm as over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.multiprocess import clients
from tests.ranks import Ranks


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Ranks, Ranks]]:
    with Ranks(2, "gloo") as gloo, Ranks(2, "shm") as shm:
        yield gloo, shm


def _same(both: tuple[Ranks, Ranks], client: Callable[..., Any], *args: Any) -> None:
    gloo, shm = (ranks.run(client, *args) for ranks in both)
    for rank, (expected, found) in enumerate(zip(gloo, shm, strict=True)):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), f"rank {rank}"


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}],
    ids=["plain", "bucket-view", "unused", "static"],
)
def test_ddp(both: tuple[Ranks, Ranks], options: dict[str, bool]) -> None:
    _same(both, clients.ddp, options)


@pytest.mark.parametrize(
    "client",
    [
        clients.ddp_no_sync,
        clients.ddp_sparse,
        clients.fsdp2,
        clients.dtensor,
        clients.checkpoint,
        clients.functional,
    ],
)
def test_client(both: tuple[Ranks, Ranks], client: Callable[..., Any]) -> None:
    _same(both, client)
