"""Real services for tests, each started once, and what to do where one is not installed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from lockstep.tensorflow.environment import find_environment, why_not
from tests.system.slurm import SEARCH_PATH, SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

# The Debian package of each program that a test here may need.
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "setpriv": "util-linux",
    "mpirun.openmpi": "openmpi-bin",
    "mpirun.mpich": "mpich",
    "ip": "iproute2",
    "tc": "iproute2",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}


def require(program: str) -> str:
    """Return the path of `program`; without it skip the test, or fail it where CI=true."""
    path = shutil.which(program, path=SEARCH_PATH)
    if path is not None:
        return path
    advice = f"{program} is not installed: apt-get install {PACKAGES.get(program, program)}"
    if os.environ.get("CI") == "true":
        pytest.fail(advice, pytrace=False)
    pytest.skip(advice)


@pytest.fixture(scope="session")
def tensorflow_python() -> str:
    """The Python that has TensorFlow and Lockstep, and no torch."""
    if (why := why_not()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    return find_environment().python


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A running Slurm of two nodes, n1 and n2."""
    for program in ("munged", "slurmctld", "slurmd", "srun", "setpriv"):
        require(program)
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def openmpi() -> str:
    """The path of Open MPI's mpirun."""
    return require("mpirun.openmpi")


@pytest.fixture(scope="session")
def mpich() -> str:
    """The path of MPICH's mpirun."""
    return require("mpirun.mpich")
