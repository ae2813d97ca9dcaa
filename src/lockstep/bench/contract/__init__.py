"""The contract of all benchmarks: what one says of itself, what it returns, and how that is shown and saved."""

from lockstep.bench.contract.benchmark import Benchmark, Tell, measure, repeats
from lockstep.bench.contract.figures import at_least, at_most, figure, median, median_and_quartiles, seconds
from lockstep.bench.contract.options import Option, Settings, settings
from lockstep.bench.contract.result import (
    Cell,
    Column,
    Figure,
    Goal,
    Measured,
    Measurements,
    Result,
    Side,
    Table,
    Unit,
    decode,
    encode,
)

__all__ = [
    "Benchmark",
    "Cell",
    "Column",
    "Figure",
    "Goal",
    "Measured",
    "Measurements",
    "Option",
    "Result",
    "Settings",
    "Side",
    "Table",
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
