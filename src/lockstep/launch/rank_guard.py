"""Runs one rank under mpirun: says how it ended, before mpirun can know, and ends it together with mpirun.

A script that imports nothing of Lockstep: `python rank_guard.py KIND COMMAND...`, where KIND is openmpi or mpich.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends; see parent_death.py."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(kind: str, command: list[str]) -> int:
    """Run the command; return its exit code as a shell does."""
    end_with_parent()
    if os.getppid() == 1:
        return 1
    code = subprocess.run(command, check=False, preexec_fn=end_with_parent).returncode
    if code == 0:
        return 0
    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    sys.stderr.write(f"lockstep: rank {rank} on {os.uname().nodename} ended with {code}\n")
    sys.stderr.flush()
    if kind == "mpich":  # Hydra ends the other ranks after a signal, but not after an exit code
        os.kill(os.getpid(), signal.SIGKILL)
    return code if code > 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
