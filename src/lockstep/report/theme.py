"""The colours, for both themes. Tests hold the contrast: 4.5 for text, 3 for marks, on the ground they stand on."""

from __future__ import annotations

from lockstep.train.schema.scalars import PARTS

LIGHT = {
    "ground": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1a202c",
    "quiet": "#566070",
    "rule": "#dfe3ea",
    "grid": "#e8ebf0",
    "accent": "#2456c2",
    "tint": "#eef3fd",
    "warn": "#9a4a00",
    "good": "#0b6e4f",
    # A series for each strategy: told apart by lightness as well as hue, and in line charts by their marks.
    "series-1": "#6b7280",
    "series-2": "#2f63cf",
    "series-3": "#cc5500",
    "series-4": "#0b8a6b",
    "series-5": "#9b3fa0",
    "series-6": "#8a6d00",
    "series-7": "#0e7fa8",
    "series-8": "#b3243f",
    # The parts of a step: computing in blues, moving gradients in orange, fetching in green, waiting in grey.
    "data": "#1b8f70",
    "forward": "#5d93ea",
    "backward": "#2a55b0",
    "exchange": "#d8610b",
    "optimizer": "#8a5fc4",
    "wait": "#8b93a1",
    # Lanes through the stages, with numbers on them: forward in blues, backward in oranges, neighbours in other shades.
    "forward-1": "#3d72d9",
    "forward-2": "#2a5cc0",
    "forward-3": "#1f479c",
    "forward-4": "#153272",
    "backward-1": "#b85c00",
    "backward-2": "#9c4a00",
    "backward-3": "#7c3a00",
    "backward-4": "#5a2a00",
}
DARK = {
    "ground": "#0f1218",
    "card": "#171b23",
    "ink": "#e7eaf0",
    "quiet": "#a5aebd",
    "rule": "#2b313d",
    "grid": "#262c37",
    "accent": "#8db4ff",
    "tint": "#1a2436",
    "warn": "#ffb366",
    "good": "#5fd3a8",
    "series-1": "#a3abba",
    "series-2": "#7fa9ff",
    "series-3": "#ff9d5c",
    "series-4": "#3ecfa4",
    "series-5": "#de8fe0",
    "series-6": "#dfc04f",
    "series-7": "#57c7ea",
    "series-8": "#ff8496",
    "data": "#3fc49b",
    "forward": "#8fb8ff",
    "backward": "#5279dd",
    "exchange": "#ff9147",
    "optimizer": "#b694ef",
    "wait": "#7f8797",
    "forward-1": "#6f9bf2",
    "forward-2": "#8fb4ff",
    "forward-3": "#b1cbff",
    "forward-4": "#d3e2ff",
    "backward-1": "#e88b3c",
    "backward-2": "#ffa55c",
    "backward-3": "#ffc08c",
    "backward-4": "#ffdcbf",
}
SERIES = 8
"""How many strategies have a colour of their own; more of them begin again."""
SHADES = 4
"""How many lanes have a shade of their own; more of them begin again."""

# What charts need, on the page and alone.
MARKS = """
text{font:13px system-ui,-apple-system,Segoe UI,Roboto,Helvetica Neue,sans-serif;fill:var(--ink);
font-variant-numeric:tabular-nums}
.light{font-weight:400}.small{font-size:12px}.strong{font-weight:600}.quiet{fill:var(--quiet)}.warn{fill:var(--warn)}
.halo{paint-order:stroke;stroke:var(--card);stroke-width:5px;stroke-linejoin:round}
.grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--quiet);stroke-width:1}
.fill{fill:var(--c)}.line{stroke:var(--c);fill:none;stroke-linejoin:round;stroke-linecap:round}
.on{fill:var(--card);pointer-events:none}.flat{stroke-linecap:butt}.whisker{stroke:var(--ink);stroke-width:1.5;fill:none}.under{stroke:var(--card);stroke-width:5;
opacity:.75;fill:none}.ideal{stroke:var(--quiet);stroke-width:1.5;
stroke-dasharray:5 5;fill:none}.ring{fill:var(--card);stroke:var(--c);stroke-width:2}
"""


def variables(theme: dict[str, str]) -> str:
    """Return a theme as CSS declarations."""
    return "".join(f"--{name}:{value};" for name, value in theme.items())


def classes() -> str:
    """Return the classes that give a mark its colour: `s1` to `s8`, `p-data` to `p-wait`, `p-forward-1` and so on."""
    series = [f".s{number}{{--c:var(--series-{number})}}" for number in range(1, SERIES + 1)]
    return "".join([*series, *(f".p-{name}{{--c:var(--{name})}}" for name in (*PARTS, *shades()))])


def shades() -> list[str]:
    """Return the names of the colours of lanes."""
    return [f"{way}-{shade}" for way in ("forward", "backward") for shade in range(1, SHADES + 1)]


def alone() -> str:
    """Return the style of a picture that stands alone: it follows the reader's setting."""
    dark = f"@media (prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}"
    return f"svg{{{variables(LIGHT)}}}{dark}{MARKS}{classes()}"


def page() -> str:
    """Return the style of charts on a page, which has a switch as well."""
    dark = variables(DARK)
    return (
        f":root{{color-scheme:light;{variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}{MARKS}{classes()}"
    )
