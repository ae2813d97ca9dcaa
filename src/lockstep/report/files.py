"""Every file of a report, written next to the runs or into a folder of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.report import tensorboard as events
from lockstep.report.charts import times
from lockstep.report.markdown import markdown
from lockstep.report.page import page
from lockstep.report.trace import trace
from lockstep.train.records import write_bytes

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison

PAGE = "report.html"


def write_all(comparison: Comparison, folder: Path, tensorboard: bool = False) -> list[Path]:
    """Write the page, Markdown, JSON, the bars as a picture, the trace, and TensorBoard's event files if asked.

    The page comes first in what is returned: it is what a person opens. Files of an earlier report are replaced whole.
    """
    if tensorboard:
        events.check()
    contents = {
        PAGE: page(comparison),
        "comparison.md": markdown(comparison),
        "comparison.json": _json(comparison.as_json(), indent=1),
        "comparison.svg": times.alone(comparison.title, comparison.rows),
        "trace.json": _json(trace(comparison)),
    }
    for name, text in contents.items():
        write_bytes(folder / name, [text.encode()])
    made = [folder / name for name in contents]
    return made + events.write(comparison, folder / "tensorboard") if tensorboard else made


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def _finite(content: Any) -> Any:
    """Return the same with None for what JSON cannot say: a loss that is not a number."""
    if isinstance(content, dict):
        return {str(name): _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
