"""The Python that TensorFlow's ranks run with."""

from __future__ import annotations

from lockstep.tensorflow.environment import find_environment


def rank_python() -> str:
    """Return its path."""
    return find_environment().python
