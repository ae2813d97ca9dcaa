"""Lockstep trains one PyTorch model on many workers: one recipe, every way, the same bits, measured."""

from lockstep.comm.register import register as _register_shm
from lockstep.version import __version__

__all__ = ["__version__"]

_register_shm()
