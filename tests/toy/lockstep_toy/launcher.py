"""A launcher in the fewest lines: a process for each rank, told its place by torch's own variables."""

from __future__ import annotations

import os
import subprocess

from lockstep.launch.base import Job, Launcher, Outcome, threads_for
from lockstep.world.addresses import free_port


class ToyLauncher(Launcher):
    """Fresh processes of this machine; the rest is ended when one fails."""

    def start(self, job: Job) -> Outcome:
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(job.workers)}
        common |= {"LOCKSTEP_LAUNCHER": "toy", **threads_for(job), **job.variables}
        ranks = [
            subprocess.Popen(job.command, env={**os.environ, **common, "RANK": str(rank)})
            for rank in range(job.workers)
        ]
        try:
            exits = {rank: process.wait() for rank, process in enumerate(ranks)}
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        failed = {rank: code for rank, code in exits.items() if code}
        return Outcome(1 if failed else 0, failed)
