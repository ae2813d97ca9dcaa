"""The message on what cannot be sent to the workers names the variable."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep.notebook.blame import blame

LOCK = threading.Lock()


def uses_a_global() -> Any:
    return LOCK


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def closing_over(inner: Any) -> Any:
    return lambda: inner


def numbers() -> Any:
    yield 1


# The functions of this file belong to a module, so they would be pickled by name: blame looks at what is in them.
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (closing_over(LOCK), "variable `inner` of `x`, a _thread.lock,"),
        ({"a": 1, "b": [0, numbers()]}, "element 1, entry 'b' of `x`, a generator,"),
        (Holder(LOCK), "attribute `held` of `x`, a _thread.lock,"),
        (functools.partial(print, LOCK), "element 0, arguments of `x`, a _thread.lock,"),
        (LOCK, "`x`, a _thread.lock,"),
    ],
)
def test_the_culprit_is_named(value: Any, named: str) -> None:
    text = blame(value, "x")
    assert text.startswith(f"{named} cannot be sent to the workers: ")
    assert text.endswith("Make it inside the function that uses it, or leave it out")


def test_an_open_file_in_a_global_of_a_cell(tmp_path: Path) -> None:
    with open(tmp_path / "log.txt", "w") as log:
        cells: dict[str, Any] = {"__name__": "__main__", "log": log}
        exec("def loss(model, batch):\n    log.write('x')\n", cells)
        assert blame(cells["loss"], "loss").startswith("variable `log` of `loss`, a _io.TextIOWrapper, cannot be sent")
