"""What a run records: parts that add up, spans, fingerprints, ranks; and a loss that is no number."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from lockstep.launch.start import start_run
from lockstep.train.records import read_json, read_records
from lockstep.train.spec import RunSpec
from lockstep.train.weights_difference import largest_difference
from tests.commands import TINY, inside

PARTS = {"data", "forward", "backward", "exchange", "optimizer", "wait"}
STEPS = 10


def run(out: Path, strategy: str, **fields: Any) -> Path:
    workers = 1 if strategy == "single" else 2
    order: dict[str, Any] = {"recipe": TINY, "lanes": 4, "threads": 1, "steps": STEPS, "progress": False, **fields}
    return start_run(RunSpec(strategy=strategy, workers=workers, launcher="spawn", **order), out)


def steps_of(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [line for line in read_records(folder / f"rank-{rank}.jsonl") if "step" in line]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    return {name: run(base / name, name) for name in ("single", "dp", "ddp", "torch-ddp")}


@pytest.mark.parametrize("name", ["single", "dp", "ddp", "torch-ddp"])
def test_the_parts_of_a_step_add_up(runs: dict[str, Path], name: str) -> None:
    result = read_json(runs[name] / "result.json")
    for rank, figures in enumerate(result["ranks"]):
        lines = steps_of(runs[name], rank)
        assert [line["step"] for line in lines] == list(range(STEPS))
        for line in lines:
            assert set(line["seconds"]) == PARTS
            assert min(line["seconds"].values()) >= 0.0
            assert ("spans" in line) == (3 <= line["step"] <= 7)
            for part, at, length in line.get("spans", []):
                assert part in PARTS
                assert at >= 0.0
                assert at + length <= line["total"] * 1.05
        # The median: these steps take a millisecond, and a process can be put aside for longer between two laps.
        shares = [sum(line["seconds"].values()) / line["total"] for line in lines]
        assert statistics.median(shares) == pytest.approx(1.0, abs=0.05)
        spanned = [line for line in lines if "spans" in line]
        for part in PARTS:
            in_spans = sum(length for line in spanned for one, _, length in line["spans"] if one == part)
            assert in_spans == pytest.approx(sum(line["seconds"][part] for line in spanned), abs=1e-4)
        measured = [line["seconds"] for line in lines[result["warmup_steps"] :]]
        for part, mean in figures["parts"].items():
            if "ready" not in lines[0] or part not in ("exchange", "wait"):  # there the ranks' clocks divide these two
                assert mean == pytest.approx(
                    statistics.fmean(seconds[part] for seconds in measured), rel=0.01, abs=1e-5
                )


def test_one_worker_exchanges_nothing_and_waits_for_nobody(runs: dict[str, Path]) -> None:
    lines = steps_of(runs["single"])
    assert {line["seconds"]["exchange"] for line in lines} == {line["seconds"]["wait"] for line in lines} == {0.0}
    assert {line["sent"] for line in lines} == {0}


@pytest.mark.parametrize("name", ["ddp", "torch-ddp"])
def test_what_is_exchanged(runs: dict[str, Path], name: str) -> None:
    parameters = 8 * 16 + 16 + 16 + 16 + 16 * 4 + 4
    for rank in (0, 1):
        for line in steps_of(runs[name], rank):
            assert line["sent"] >= 4 * parameters
            assert line["seconds"]["exchange"] > 0.0
            assert ("ready" in line) == (name == "torch-ddp")
            assert (line["hidden"] > 0.0) == (name == "torch-ddp")


def test_the_result_has_every_rank(runs: dict[str, Path]) -> None:
    result = read_json(runs["torch-ddp"] / "result.json")
    assert result["finite"] is True
    assert result["measured"] is True
    assert result["warmup_steps"] == 2
    assert result["start_seconds"] > 0.0
    low, middle, high = result["step_quartiles"]
    assert low <= middle <= high
    assert middle == result["step_seconds"] == max(rank["step_seconds"] for rank in result["ranks"])
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    assert [rank["peak_memory"] for rank in result["ranks"]] == result["peak_memory"]
    header = read_records(runs["torch-ddp"] / "rank-1.jsonl")[0]
    assert result["ranks"][1]["host"] == header["host"]
    assert result["ranks"][1]["loss"] == steps_of(runs["torch-ddp"], 1)[-1]["loss"]


def test_fingerprints_tell_where_runs_part(runs: dict[str, Path], tmp_path: Path) -> None:
    prints = {name: read_records(folder / "prints.jsonl") for name, folder in runs.items()}
    assert [line["step"] for line in prints["ddp"]] == [0, 1, 2, 4, 8, 9]
    assert prints["single"] == prints["dp"] == prints["ddp"]
    other = read_records(run(tmp_path / "run", "single", seed=1) / "prints.jsonl")
    assert other[0]["parameters"]["0.weight"][0] != prints["single"][0]["parameters"]["0.weight"][0]
    found, mean, norm = prints["torch-ddp"][-1]["parameters"]["4.bias"]
    assert len(bytes.fromhex(found)) == 8
    assert norm > abs(mean) > 0.0
    assert set(prints["ddp"][0]["buffers"]) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_the_trained_weights_are_compared_exactly(runs: dict[str, Path]) -> None:
    assert largest_difference(runs["single"], runs["ddp"]) == (0.0, "")
    found = largest_difference(runs["single"], runs["torch-ddp"])
    assert found is not None
    assert 0.0 < found[0] < 1.0
    assert found[1]


def test_no_measure_notes_time_and_loss_only(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "torch-ddp", measure=False)
    for line in steps_of(folder):
        assert set(line) == {"step", "epoch", "loss", "weight", "total", "began"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "final.safetensors",
        "rank-0.jsonl",
        "rank-1.jsonl",
        "result.json",
        "run.json",
    ]
    result = read_json(folder / "result.json")
    assert result["measured"] is False
    assert set(result["ranks"][0]["parts"].values()) == {0.0}
    assert result["digest"] == read_json(runs["torch-ddp"] / "result.json")["digest"]


def test_a_loss_that_is_no_number_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    order = ["run", f"{TINY}:nan", "--workers", "2", "--out", "out", "--json"]
    done = inside(order, tmp_path, monkeypatch, capfd)
    assert done.code == 1, done.text
    assert "the loss is nan at step 3" in done.err
    result = read_json(tmp_path / "out" / "result.json")
    assert result["outcome"] == "failed"
    assert result["finite"] is False
    assert result["step"] == 3
    assert "the loss is nan at step 3" in result["why"]
    lines = steps_of(tmp_path / "out", result["rank"])
    assert [line["loss"] is None for line in lines] == [False, False, False, True]


def test_a_metric_that_is_no_number_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done = inside(["run", f"{TINY}:odd_metric", "--steps", "1", "--out", "out"], tmp_path, monkeypatch, capfd)
    assert done.code == 0, done.text
    assert "evaluation: accuracy not a number" in done.out
    result = read_json(tmp_path / "out" / "result.json")
    assert result["metrics"] == {"accuracy": None}
    assert result["finite"] is False
