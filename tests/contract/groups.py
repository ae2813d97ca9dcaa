"""Groups of ranks as the parameters of a fixture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from lockstep.strategies import one_message_step
from tests.ranks import Ranks

IN_SECTIONS = " in sections"


def groups(named: Mapping[str, Any], pinned: Collection[str]) -> list[Any]:
    """Return one parameter for each group, by name; those that are pinned run on the torch of constraints.txt only."""
    return [
        pytest.param(group, id=name, marks=[pytest.mark.pinned_torch] if name in pinned else [])
        for name, group in named.items()
    ]


@contextmanager
def started_group(kind: str, hosts: list[int]) -> Iterator[tuple[Ranks, list[int]]]:
    """Yield ranks on hosts with so many each; `kind` is a backend, perhaps with IN_SECTIONS.

    The models of tests are small: their sums go whole between hosts. In sections they go as those of large models.
    """
    with Ranks(sum(hosts), kind.removesuffix(IN_SECTIONS)) as ranks:
        if kind.endswith(IN_SECTIONS):
            ranks.run(_send_sections)
        yield ranks, hosts


def _send_sections(rank: int, size: int) -> None:
    one_message_step.MOST = -1  # in this group's own processes
