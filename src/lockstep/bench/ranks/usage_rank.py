"""One rank of `lockstep bench measure`: the CPU time of looks at what it uses, with a process of its own beside it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lockstep.bench.ranks.rank import serve
from lockstep.train.records import Records
from lockstep.train.usage_sampler import UsageSampler

LOOKS = 20
"""For one sample: a single one is shorter than the clock of CPU time can tell."""


def measure(plan: dict[str, Any]) -> dict[str, list[float]]:
    """Return the seconds of CPU time of a look and of the line that it becomes."""
    torch.ones(512, 512) @ torch.ones(512, 512)  # the threads that a training has
    records = Records(Path(plan["folder"]), 0)
    sampler = UsageSampler(records, "cpu")
    samples = []
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        for _ in range(plan["repeats"]):
            began = time.thread_time()
            for _ in range(LOOKS):
                records.write(sampler.look())
            samples.append((time.thread_time() - began) / LOOKS)
        child.communicate(b"\n")
    return {"look": samples}


if __name__ == "__main__":
    serve(measure)
