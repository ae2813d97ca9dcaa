"""The pages of the documentation, as they come with the package: also where there is no browser, clone or network."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lockstep.errors import BadInput, nearest

INSTALLED, CLONE = Path(__file__).parent / "pages", Path(__file__).parents[2] / "docs"
"""Where they are if the package was built, and in a clone."""
COMMAND = "lockstep docs"


class Page(NamedTuple):
    """One of them."""

    name: str
    """As it is typed: the path without its ending."""
    title: str
    """Its first heading."""
    path: Path


def every_page() -> list[Page]:
    """Return all pages, those of the guide first, in their order."""
    folder = INSTALLED if INSTALLED.is_dir() else CLONE
    paths = sorted((folder / "guide").glob("*.md")) + sorted(folder.glob("*.md"))
    return [Page(str(path.relative_to(folder).with_suffix("")), _title(path), path) for path in paths]


def find_page(name: str) -> Page:
    """Return the page that was asked for: by its name, that of its file, or the number of a chapter of the guide."""
    pages = every_page()
    wanted = name.removeprefix("docs/").removesuffix(".md")
    for page in pages:
        file_name = page.path.stem
        number = file_name.partition("-")[0]
        if wanted in (page.name, file_name) or (number.isdigit() and wanted.isdigit() and int(number) == int(wanted)):
            return page
    known = nearest(wanted, [page.name for page in pages])
    raise BadInput(f"no page is called {name!r} (`{COMMAND}` lists all){known}")


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), path.stem)
