"""Which tests one process runs, where several run them: those that share what is slow to start.

A file's tests stay together: they share its pool of ranks. Others are dealt out one by one, after them, so that all
processes end at about the same time. Services (Slurm, MPI) are started once in each process that needs them.

Not by pytest-xdist's `loadgroup`: its 3.8 writes groups into the names of tests, which pytest 9.2 no longer reads.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

APART = frozenset(
    {
        "test_launchers.py",
        "test_ends.py",
        "test_scripts.py",
        "test_shm_scripts.py",
        "test_compare.py",
        "test_benchmarks.py",
        "test_deaths.py",
        "test_lost_output.py",
        "test_stalled_ranks.py",
        "test_fuzz.py",
        "test_documentation.py",
    }
)
"""Files whose tests share nothing and take long."""
TOGETHER = frozenset({"test_batch_jobs.py", "test_notebook.py"})
"""Of the files that need real services: those whose tests look at the same jobs, or at the same notebook."""


def together(name: str) -> str:
    """Return what a test has in common with those that run where it runs: its file, or nothing but its own name."""
    path = PurePosixPath(name.partition("::")[0])
    if path.name in APART or (path.parent.name == "system" and path.name not in TOGETHER):
        return name
    return str(path)


class TogetherByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out tests by what they have in common."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)
