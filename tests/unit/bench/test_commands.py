"""`lockstep bench`: its commands are what the registry holds; nothing imports torch before one runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.bench.contract.registry import BENCHMARKS, PREFIX
from tests.commands import CommandLine
from tests.toy import write_metadata

MODULES = Path(__file__).parents[3] / "src" / "lockstep" / "bench"


def test_every_module_is_a_benchmark() -> None:
    modules = {path.stem for path in MODULES.glob("*.py")} - {"__init__"}
    assert modules == {f"{PREFIX}{name}" for name in BENCHMARKS.names()}


@pytest.mark.parametrize("name", BENCHMARKS.names())
def test_every_description_is_whole(name: str) -> None:
    benchmark = BENCHMARKS.get(name)
    assert re.fullmatch(r"[A-Z].{20,110}[^.]", benchmark.help), "one line that begins like a sentence, without its stop"
    names = [option.name for option in benchmark.options]
    assert "repeats" in names
    assert len(set(names)) == len(names)
    for option in benchmark.options:
        assert option.help.endswith(".")
        for value in (option.default, option.quick):
            assert option.read(option.write(value)) == value


def test_help_lists_them_and_their_options_without_torch() -> None:
    code = """
import sys
from typer.testing import CliRunner
from lockstep.bench.contract.registry import BENCHMARKS
from lockstep.cli import app
wide = {"COLUMNS": "400", "TERMINAL_WIDTH": "400"}
told = CliRunner().invoke(app, ["bench", "--help"], env=wide).output
for one in BENCHMARKS.all():
    assert one.name in told and one.help in told, told
    options = CliRunner().invoke(app, ["bench", one.name, "--help"], env=wide).output
    for flag in ("--quick", "--json", "--save", *(option.flag for option in one.options)):
        assert flag in options, options
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ddpp"], "no benchmark called 'ddpp'; did you mean 'ddp'?"),
        (["ddp", "--repeats", "0"], "--repeats 0: expected at least 1"),
        (
            ["data", "--items", "many"],
            "--items many: expected numbers separated by commas, for example 2000,10000,200000",
        ),
        (["data", "--items", "10"], "--items 10: expected at least 400 for 4 ranks"),
        (["syncbn", "--quick", "--save", "gone/result.json"], "--save gone/result.json: there is no folder gone"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, cli: CommandLine) -> None:
    done = cli("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"lockstep: {words}\n"


OUTSIDE = """
from lockstep.bench.contract import Benchmark, TableColumn, Quantity, Measurements, Table, Unit, repeats

def run(settings, tell):
    tell("counting")
    columns = (TableColumn(name="what"), TableColumn(name="time", unit=Unit.SECONDS))
    rows = ({"what": "a step", "time": Quantity(value=1.5)},)
    return Measurements(tables=(Table(name="times", title="times", columns=columns, rows=rows),))

BENCHMARK = Benchmark(name="outside", help="A benchmark of another package", options=(repeats(3),), run=run)
"""


def test_another_package_adds_a_benchmark(tmp_path: Path, cli: CommandLine) -> None:
    write_metadata(tmp_path, "lockstep-outside", {"lockstep.benchmarks": {"outside": "outside:BENCHMARK"}})
    (tmp_path / "outside.py").write_text(OUTSIDE)
    done = cli.apart("bench", "outside", "--quick", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 0, done.text
    assert "1.50 s" in done.out
    assert done.err.splitlines()[0] == "outside: counting ..."
