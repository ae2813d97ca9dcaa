"""Every file of a report, written next to the runs or into a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lockstep.report import tensorboard as events
from lockstep.report.charts import times
from lockstep.report.markdown import markdown
from lockstep.report.page import page
from lockstep.report.trace import trace
from lockstep.train.event_file import check_tensorboard
from lockstep.train.records import write_bytes

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison

PAGE = "report.html"


def write_all(comparison: Comparison, folder: Path, tensorboard: bool = False) -> list[Path]:
    """Write the page, Markdown, JSON, the bars as a picture, the trace, and TensorBoard's event files if asked.

    The page comes first in what is returned: it is what a person opens. Files of an earlier report are replaced whole.
    """
    if tensorboard:
        check_tensorboard()
    contents = {
        PAGE: page(comparison),
        "comparison.md": markdown(comparison),
        "comparison.json": json_text(comparison.as_json(), indent=1),
        "comparison.svg": times.alone(comparison.title, comparison.rows),
        "trace.json": json_text(trace(comparison), indent=-1),
    }
    for name, text in contents.items():
        write_bytes(folder / name, [text.encode(errors="backslashreplace")])  # names of files may not be Unicode text
    made = [folder / name for name in contents]
    return made + events.write(comparison, folder / "tensorboard") if tensorboard else made


def json_text(content: object, indent: int = 0) -> str:
    """Return JSON; a number that JSON cannot say, a loss that is not finite, is null."""
    return msgspec.json.format(msgspec.json.encode(content), indent=indent).decode() + "\n"
