"""Starting the ranks of a benchmark: fresh processes, one thread each, gloo on the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from lockstep.errors import RunFailed

RANK_SECONDS = 900


def run_ranks(module: str, workers: int, plan: dict[str, Any]) -> Any:
    """Run a module once per rank with the plan as its argument; return the JSON that rank 0 prints."""
    # The opponent's best: its own device on loopback. One thread a rank, as torchrun sets it.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks: list[subprocess.Popen[str]] = []
        try:
            for rank in range(workers):
                argument = json.dumps({**plan, "rank": rank, "workers": workers, "folder": folder})
                command = [sys.executable, "-m", module, argument]
                ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
            text, _ = ranks[0].communicate(timeout=RANK_SECONDS)
            for rank, process in enumerate(ranks):
                if process.wait(timeout=60) != 0:
                    raise RunFailed(f"rank {rank} of {workers} failed with exit code {process.returncode}; see above")
        finally:
            for process in ranks:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
    return json.loads(text)
