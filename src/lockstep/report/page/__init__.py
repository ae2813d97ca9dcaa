"""One HTML file that needs nothing else: no network, no fonts, no library.

The templates escape everything but the charts, see [Note: safe markup]. The page's policy (CSP) forbids every request,
and allows the one style and the one script in it by their hashes: text from a run could not load or run anything even
if it got past our escaping.
"""

from __future__ import annotations

import base64
import hashlib
import time
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lockstep.report import theme
from lockstep.report.charts import all_charts
from lockstep.report.charts.frame import series
from lockstep.report.columns import columns, rank_columns
from lockstep.report.units import plural
from lockstep.report.wording import COMMAND, groups
from lockstep.version import __version__

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison


def page(comparison: Comparison) -> str:
    """Return the report as one HTML document."""
    style, script = theme.page() + _own("page.css"), _own("page.js")
    charts = all_charts(comparison)
    links = [("recommendation", "Recommendation")] if comparison.recommendation else []
    links += [(chart.key, chart.title) for chart in charts]
    links += [("why", "Why"), ("table", "Table"), ("repeat", "To repeat it")]
    return (
        _templates()
        .get_template("page.html")
        .render(
            comparison=comparison,
            policy=_policy(style, script),
            style=Markup(style),  # noqa: S704 - ours: nothing of a run is in it
            script=Markup(script),  # noqa: S704 - ours, too
            links=links,
            charts=charts,
            colours=series(comparison.rows),
            columns=columns(comparison.rows),
            rank_columns=rank_columns,
            coupled=sorted({row.depends_on_workers for row in comparison.rows if row.depends_on_workers}),
            command=comparison.settings.get(COMMAND),
            groups=groups(comparison),
            version=__version__,
            made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            runs=plural(sum(len(runs) for runs in comparison.runs.values()), "run"),
        )
    )


def _templates() -> Environment:
    return Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return the content security policy: this style, this script, pictures in the page, and nothing else."""
    rules = ("default-src 'none'", f"style-src {_hash(style)}", f"script-src {_hash(script)}", "img-src data:")
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
