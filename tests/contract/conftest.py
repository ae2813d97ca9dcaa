"""Groups that the contract's cases share: starting ranks costs more than most cases."""

from collections.abc import Iterator

import pytest

from tests.ranks import Ranks, warm_up

warm_up()


@pytest.fixture(
    scope="module",
    params=[("gloo", 2), ("gloo", 3), ("shm", 1), ("shm", 2), ("shm", 3), ("shm", 4)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    backend, size = request.param
    with Ranks(size, backend) as started:
        yield started
