"""A program that starts its own ranks, as Lightning's Trainer does: it runs its script again for each of them."""

from __future__ import annotations

from lockstep.launch.base import Job, Launcher, Outcome, threads_for
from lockstep.launch.command import clean_environment, run_command

ITSELF = "itself"
"""The launcher of such a program in its run folder."""


class SelfLaunching(Launcher):
    """Starts one process, which starts the others."""

    def start(self, job: Job) -> Outcome:
        """Start the program and wait for it."""
        env = clean_environment({**threads_for(job), **job.variables})
        code = run_command(job.command, env, lambda _: False)
        return Outcome(code if code >= 0 else 1)
