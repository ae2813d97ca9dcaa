"""The pages name every option of their command, and no other; their tables are what the registries hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import typer

from lockstep.bench.contract.doc_tables import blocks
from lockstep.bench.contract.registry import BENCHMARKS
from lockstep.cli import app
from lockstep.registry import LAUNCHERS, PEERS, STRATEGIES
from lockstep.train.schema.scalars import SCHEMA
from tests import schema_tables

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("command", "elsewhere"), [("compare", set()), ("report", {"--workers"})])
def test_options(command: str, elsewhere: set[str]) -> None:
    """`elsewhere` are options of other commands that the page has reason to name."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    options = {name for option in found.params for name in option.opts if name.startswith("--")}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (DOCS / f"{command}.md").read_text(encoding="utf-8")))
    assert named - elsewhere == options - {"--help"}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace(" --- ", "---")


def tables() -> dict[str, tuple[str, str]]:
    """Return what stands between the markers of a page."""
    strategies = [
        (
            f"`{one.name}`",
            one.help,
            "yes" if one.exact else "no",
            "threads" if one.one_process and one.most_workers != 1 else "one" if one.one_process else "processes",
        )
        for one in STRATEGIES.all()
    ]
    peers = [(f"`{one.name}`", one.help, one.launcher or "itself") for one in PEERS.all()]
    launchers = [(f"`{one.name}`", one.help) for one in LAUNCHERS.all()]
    benchmarks = [(f"`{one.name}`", one.help) for one in BENCHMARKS.all()]
    return {
        "strategies": ("compare.md", table(("strategy", "what it is", "same bits", "workers"), strategies)),
        "peers": ("peers.md", table(("peer", "what it is", "started by"), peers)),
        "launchers": ("launchers.md", table(("launcher", "what it is"), launchers)),
        "benchmarks": ("bench.md", table(("benchmark", "what it measures"), benchmarks)),
    }


@pytest.mark.parametrize("name", ["strategies", "peers", "launchers", "benchmarks"])
def test_tables(name: str) -> None:
    page, expected = tables()[name]
    text = (DOCS / page).read_text(encoding="utf-8")
    held = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert held is not None
    assert held[1] == expected, f"put this between the markers {name} of {page}:\n{expected}"


def test_the_page_of_the_run_folder_is_made_of_the_schema() -> None:
    text = schema_tables.PAGE.read_text(encoding="utf-8")
    assert schema_tables.described(text) == schema_tables.schema_types()
    assert schema_tables.with_tables(text) == text, f"a field was changed: run {schema_tables.COMMAND}"
    assert f"schema version {SCHEMA}:" in text


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_bench_commands(page: Path) -> None:
    """Every `lockstep bench` of a page is a benchmark, which the contract suite runs, and has the options it names."""
    text = page.read_text(encoding="utf-8")
    for name, rest in re.findall(r"lockstep bench ([a-z]+)([^`\n#]*)", text):
        options = {option.flag for option in BENCHMARKS.get(name).options} | {"--quick", "--save", "--json"}
        assert set(re.findall(r"--[a-z][a-z-]*", rest)) <= options
    assert {block.benchmark for block in blocks(text)} <= set(BENCHMARKS.names())


def test_every_benchmark_is_shown_and_every_page_of_one_names_the_quick_form() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    shown = {name for name in BENCHMARKS.names() for text in pages.values() if f"lockstep bench {name}" in text}
    assert shown == set(BENCHMARKS.names())
    with_tables = {name for name, text in pages.items() if blocks(text)}
    assert with_tables >= {"launchers.md", "ddp.md", "shm.md", "sync-batchnorm.md", "data.md"}
    assert [name for name in {*with_tables, "peers.md", "bench.md"} if "--quick" not in pages[name]] == []


def test_the_cells_of_the_page_of_notebooks_are_those_of_the_example() -> None:
    """The tests run the example; what the page shows beside it, the tests of Slurm run."""
    text = (DOCS / "notebooks.md").read_text(encoding="utf-8")
    cells = json.loads((DOCS.parent / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    lines = {
        line.rstrip() for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).split("\n")
    }
    shown = [line for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) for line in block.split("\n")]
    assert [line for line in shown if line not in lines and "srun" not in line] == []
