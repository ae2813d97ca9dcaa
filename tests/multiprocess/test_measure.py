"""What a run records: parts that add up, spans, fingerprints, ranks; and a loss that is no number."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.strategies.clock import PARTS, Part
from lockstep.train.schema.fingerprints_jsonl import read_fingerprints
from lockstep.train.schema.rank_jsonl import NotFiniteLine, StepLine, header_of, rank_path, read_rank, steps_of
from lockstep.train.schema.result_json import Failed, read_result
from lockstep.train.spec import RunSpec
from lockstep.train.weights_difference import largest_difference
from tests.commands import TINY, CommandLine
from tests.devices import ON_CPU, only_cpu

STEPS = 10


def run(out: Path, strategy: str, **fields: Any) -> Path:
    workers = 1 if strategy == "single" else 2
    order: dict[str, Any] = {"recipe": TINY, "lanes": 4, "threads": 1, "steps": STEPS, "progress": False, **fields}
    return start_run(RunSpec(strategy=strategy, workers=workers, launcher="spawn", **order), out)


def steps(folder: Path, rank: int = 0) -> tuple[StepLine, ...]:
    return steps_of(read_rank(rank_path(folder, rank)))


def seconds(line: StepLine) -> dict[Part, float]:
    assert line.seconds is not None
    return line.seconds


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    return {name: run(base / name, name) for name in ("single", "dp", "ddp", "torch-ddp")}


@pytest.mark.parametrize("name", ["single", "dp", "ddp", "torch-ddp"])
def test_the_parts_of_a_step_add_up(runs: dict[str, Path], name: str) -> None:
    result = read_finished(runs[name]).result
    for rank, figures in enumerate(result.ranks):
        lines = steps(runs[name], rank)
        assert [line.step for line in lines] == list(range(STEPS))
        for line in lines:
            assert tuple(seconds(line)) == PARTS
            assert min(seconds(line).values()) >= 0.0
            assert (line.spans is not None) == (3 <= line.step <= 7)
            for _, at, length in line.spans or ():
                assert at >= 0.0 or not ON_CPU
                assert at + length <= line.total * 1.05
        # The median: these steps take a millisecond, and a process can be put aside for longer between two laps.
        shares = [sum(seconds(line).values()) / line.total for line in lines]
        if ON_CPU:  # on a device a step has the update of the step before
            assert statistics.median(shares) == pytest.approx(1.0, abs=0.05)
        spanned = [line for line in lines if line.spans]
        for part in PARTS:
            in_spans = sum(length for line in spanned for one, _, length in line.spans or () if one == part)
            assert in_spans == pytest.approx(sum(seconds(line)[part] for line in spanned), abs=1e-4)
        measured = [seconds(line) for line in lines[result.warmup_steps :]]
        for part, mean in figures.parts.items():
            if lines[0].ready is None or part not in ("exchange", "wait"):  # there the ranks' clocks divide these two
                assert mean == pytest.approx(statistics.fmean(step[part] for step in measured), rel=0.01, abs=1e-5)


def test_one_worker_exchanges_nothing_and_waits_for_nobody(runs: dict[str, Path]) -> None:
    lines = steps(runs["single"])
    assert {seconds(line)["exchange"] for line in lines} == {seconds(line)["wait"] for line in lines} == {0.0}
    assert {line.sent for line in lines} == {0}


@only_cpu
@pytest.mark.parametrize("name", ["ddp", "torch-ddp"])
def test_what_is_exchanged(runs: dict[str, Path], name: str) -> None:
    parameters = 8 * 16 + 16 + 16 + 16 + 16 * 4 + 4
    for rank in (0, 1):
        for line in steps(runs[name], rank):
            assert (line.sent or 0) >= 4 * parameters
            assert seconds(line)["exchange"] > 0.0
            assert (line.ready is not None) == (name == "torch-ddp")
            assert ((line.hidden or 0.0) > 0.0) == (name == "torch-ddp")


def test_the_result_has_every_rank(runs: dict[str, Path]) -> None:
    result = read_finished(runs["torch-ddp"]).result
    assert result.finite is True
    assert result.measured is True
    assert result.warmup_steps == 2
    assert result.start_seconds > 0.0
    totals = [[line.total for line in steps(runs["torch-ddp"], rank)[2:]] for rank in (0, 1)]
    expected = max((statistics.quantiles(one, n=4, method="inclusive") for one in totals), key=lambda one: one[1])
    assert result.step_quartiles == pytest.approx(expected, abs=1e-5)
    assert result.step_seconds == result.step_quartiles[1]
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert tuple(rank.peak_memory for rank in result.ranks) == result.peak_memory
    header = header_of(read_rank(rank_path(runs["torch-ddp"], 1)))
    assert header is not None
    assert result.ranks[1].host == header.host
    assert result.ranks[1].loss == steps(runs["torch-ddp"], 1)[-1].loss


def test_fingerprints_tell_where_runs_part(runs: dict[str, Path], tmp_path: Path) -> None:
    lines = {name: read_fingerprints(folder) for name, folder in runs.items()}
    assert [line.step for line in lines["ddp"]] == [0, 1, 2, 4, 8, 9]
    assert lines["single"] == lines["dp"] == lines["ddp"]
    other = read_fingerprints(run(tmp_path / "run", "single", seed=1))
    assert other[0].parameters["0.weight"].hash != lines["single"][0].parameters["0.weight"].hash
    bias = lines["torch-ddp"][-1].parameters["4.bias"]
    assert (bias.norm or 0.0) > abs(bias.mean or 0.0) > 0.0
    assert set(lines["ddp"][0].buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_the_trained_weights_are_compared_exactly(runs: dict[str, Path]) -> None:
    assert largest_difference(runs["single"], runs["ddp"]) == (0.0, "")
    difference = largest_difference(runs["single"], runs["torch-ddp"])
    assert difference is not None
    size, tensor = difference
    assert 0.0 < size < 1.0
    last = read_fingerprints(runs["single"])[-1]
    assert tensor in {**last.parameters, **last.buffers}


def test_no_measure_notes_time_and_loss_only(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "torch-ddp", measure=False)
    for line in steps(folder):
        assert set(msgspec.to_builtins(line)) == {"kind", "step", "epoch", "loss", "weight", "total", "began"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "final.safetensors",
        "rank-0.jsonl",
        "rank-1.jsonl",
        "result.json",
        "run.json",
    ]
    result = read_finished(folder).result
    assert result.measured is False
    assert set(result.ranks[0].parts.values()) == {0.0}
    assert result.digest == read_finished(runs["torch-ddp"]).result.digest


def test_a_loss_that_is_no_number_is_an_outcome(tmp_path: Path, cli: CommandLine) -> None:
    done = cli("run", f"{TINY}:nan", "--workers", "2", "--out", "out", "--json")
    assert done.code == 1, done.text
    assert "the loss is nan at step 3" in done.err
    result = read_result(tmp_path / "out")
    assert isinstance(result, Failed)
    assert result.finite is False
    assert result.step == 3
    assert "the loss is nan at step 3" in result.why
    lines = read_rank(rank_path(tmp_path / "out", result.rank))
    assert [line.step for line in steps_of(lines)] == [0, 1, 2]
    assert lines[-1] == NotFiniteLine(step=3, epoch=0)


def test_a_metric_that_is_no_number_is_null(tmp_path: Path, cli: CommandLine) -> None:
    done = cli("run", f"{TINY}:odd_metric", "--steps", "1", "--out", "out")
    assert done.code == 0, done.text
    assert "evaluation: accuracy not a number" in done.out
    result = read_finished(tmp_path / "out").result
    assert result.metrics == {"accuracy": None}
    assert result.finite is False
