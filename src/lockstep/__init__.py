"""Lockstep trains one PyTorch model on many workers: one recipe, every way, the same bits, measured."""

from lockstep.version import __version__

__all__ = ["__version__"]
