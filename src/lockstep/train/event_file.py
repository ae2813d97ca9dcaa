"""TensorBoard event files; needs the extra `tensorboard`, and no torch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import BadInput

FLUSH_SECONDS = 2
"""What was added is in the file after so long: somebody looks at it while the run goes on."""


def check_tensorboard() -> None:
    """Refuse before any work where the package is not there."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise BadInput(
            "--tensorboard needs the package tensorboard: pip install 'lockstep-train[tensorboard]'"
        ) from None


class EventFile:
    """One event file that is being written."""

    def __init__(self, folder: Path) -> None:
        check_tensorboard()
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder), flush_secs=FLUSH_SECONDS)

    def add(self, step: int, values: Mapping[str, float], when: float | None = None) -> None:
        """Add named values of a step; those that are not finite are left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        kept = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if math.isfinite(value)]
        at = time.time() if when is None else when
        self._writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=kept)))

    def begin_at(self, step: int) -> None:
        """Tell a reader to forget what earlier files of the folder say from this step on: it is done again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step, session_log=start))

    def close(self) -> None:
        """Write everything, and close the file."""
        self._writer.close()
