"""`inline`: one worker, in this process."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from lockstep.launch.base import Job, Launcher, Outcome, threads_for
from lockstep.registry import LauncherDescription

LAUNCHER = LauncherDescription(
    name="inline",
    help="one worker, in this process",
    implementation="lockstep.launch.inline:Inline",
    one_process=True,
    this_host=True,
)


class Inline(Launcher):
    """Starts no process: for one worker, debuggers and notebooks."""

    def start(self, job: Job) -> Outcome:
        """Run the only rank in this process."""
        if job.folder is not None:
            from lockstep.launch.worker import work

            code = work(job.folder)
            return Outcome(code, {0: code} if code else {})
        os.environ.update(threads_for(job))  # torch, which is not imported yet, reads it
        if job.script[0] == "-m":
            sys.argv = list(job.script[1:])
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(job.script[1], run_name="__main__", alter_sys=True)
            return Outcome(0)
        sys.argv = list(job.script)
        sys.path.insert(0, str(Path(job.script[0]).resolve().parent))
        runpy.run_path(job.script[0], run_name="__main__")
        return Outcome(0)
