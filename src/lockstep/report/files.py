"""Every file of a report, written next to the runs or into a folder of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.report import tensorboard as events
from lockstep.report.charts import times
from lockstep.report.markdown import markdown
from lockstep.report.page import page
from lockstep.report.trace import trace
from lockstep.train.records import cannot_write

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
    made = [_write(folder / name, text) for name, text in contents.items()]
    return made + events.write(comparison, folder / "tensorboard") if tensorboard else made


def _write(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise cannot_write(path, error) from error
    return path


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def _finite(content: Any) -> Any:
    """Return the same with None for what JSON cannot say: a loss that is not a number."""
    if isinstance(content, dict):
        return {str(name): _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
