"""What is shown of a program that failed."""

from __future__ import annotations

import pytest

from lockstep.bench.ranks.tracebacks import first_traceback

TRACE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
    ^^^^^^
ValueError: no"""


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (TRACE, TRACE),
        (f"some warning\n{TRACE}\nE1116 torchrun: failed\n{TRACE.replace('no', 'second')}", TRACE),
        ("\n".join(f"[rank1]: {line}" for line in TRACE.splitlines()), TRACE),
        (f"rank 1 on node failed before the first step:\n{TRACE}\n", TRACE),
        ("killed\n", "killed"),
        ("", ""),
        ("x" * 9000, "x" * 4000),
    ],
)
def test_the_first_traceback(printed: str, shown: str) -> None:
    assert first_traceback(printed) == shown
