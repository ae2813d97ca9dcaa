"""A program that starts its own ranks: Lightning's Trainer runs its script again for each of them."""

from __future__ import annotations

from lockstep.launch.base import Job, Launcher, Outcome, threads_for
from lockstep.launch.command import clean_environment, run_command

ITSELF = "itself"
"""What a run folder names as the launcher of such a program."""


class SelfLaunching(Launcher):
    """One process is started; the others are its own affair."""

    def start(self, job: Job) -> Outcome:
        """Start the program and wait for it."""
        env = clean_environment({**threads_for(job), **job.variables})
        code = run_command(job.command, env, lambda _: False)
        return Outcome(code if code >= 0 else 1)
