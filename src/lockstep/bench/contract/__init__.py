"""The contract of all benchmarks: what one says of itself, what it returns, and how that is shown and saved."""

from lockstep.bench.contract.benchmark import Benchmark, Tell, measure, repeats
from lockstep.bench.contract.figures import at_least, at_most, figure, median, median_and_quartiles, seconds
from lockstep.bench.contract.measurements import (
    Cell,
    Figure,
    Goal,
    Measurements,
    Quantity,
    Result,
    Side,
    Table,
    TableColumn,
    Unit,
    decode,
    encode,
)
from lockstep.bench.contract.options import BenchOption, BenchSettings, settings

__all__ = [
    "BenchOption",
    "BenchSettings",
    "Benchmark",
    "Cell",
    "Figure",
    "Goal",
    "Measurements",
    "Quantity",
    "Result",
    "Side",
    "Table",
    "TableColumn",
    "Tell",
    "Unit",
    "at_least",
    "at_most",
    "decode",
    "encode",
    "figure",
    "measure",
    "median",
    "median_and_quartiles",
    "repeats",
    "seconds",
    "settings",
]
