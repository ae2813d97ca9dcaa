"""Memory that is freed and taken again costs no page faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from lockstep.train.malloc import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory() is (sys.argv[2] == "True")

def step():
    gradients = [np.ones(3_000_000, np.float32) for _ in range(4)]

for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str, **variables: str) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_what_is_freed_is_kept() -> None:
    assert faults("plain", "") > 1_000, "otherwise there is nothing to save"
    assert faults("keep", "True") < 100


def test_a_user_who_set_up_the_allocator_is_left_alone() -> None:
    assert faults("keep", "False", MALLOC_TRIM_THRESHOLD_="131072") > 1_000
