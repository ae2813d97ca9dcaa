"""Imported once by the process that ranks are forked from; must start no thread."""

import lockstep.comm.arena
import lockstep.comm.shm  # noqa: F401
