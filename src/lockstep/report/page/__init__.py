"""One HTML file that needs nothing else: no network, no fonts, no library.

Its policy (CSP) forbids every request, and allows the one style and the one script in it by their hashes: text from a
run could not load or run anything even if it got past our escaping.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from lockstep.report import theme
from lockstep.report.charts import all_charts
from lockstep.report.page import sections

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison


def page(comparison: Comparison) -> str:
    """Return the report as one HTML document."""
    style, script = theme.page() + _part("page.css"), _part("page.js")
    charts = all_charts(comparison)
    links = [("recommendation", "Recommendation")] if comparison.recommendation else []
    links += [(chart.key, chart.title) for chart in charts]
    links += [("why", "Why"), ("table", "Table"), ("repeat", "To repeat it")]
    parts = [
        sections.recommendation(comparison),
        *(sections.chart(chart) for chart in charts[:1]),
        sections.why(comparison),
        *(sections.chart(chart) for chart in charts[1:]),
        sections.table(comparison),
        sections.settings(comparison),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(comparison.title)}</title>",
            '<link rel="icon" href="data:,">',
            f"<style>{style}</style>",
            f"<script>{script}</script>",
            "</head>",
            "<body>",
            '<a class="skip" href="#main">Skip to the report</a>',
            sections.header(comparison),
            sections.navigation(links),
            '<main id="main" tabindex="-1">',
            *parts,
            "</main>",
            sections.footer(comparison),
            '<div id="tip" hidden></div>',
            "</body>",
            "</html>",
            "",
        ]
    )


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return the content security policy: this style, this script, pictures in the page, and nothing else."""
    rules = ("default-src 'none'", f"style-src {_hash(style)}", f"script-src {_hash(script)}", "img-src data:")
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
