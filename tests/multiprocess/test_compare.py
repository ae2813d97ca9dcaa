"""`lockstep compare` and `lockstep doctor` as a user sees them."""

from __future__ import annotations

import json
import re
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.registry import STRATEGIES
from lockstep.report.notes import LEANER, STEADIER
from tests.commands import LOCKSTEP, TINY, CommandLine, Done, Marked, finish

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_recipe.py"


def rows_of(done: Done) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(done.out)["rows"]}


def test_side_by_side(tmp_path: Path, cli: CommandLine) -> None:
    """Every way that there is."""
    done = cli.apart("compare", TINY, "--repeats", "1", "--json", "--out", "out")
    assert done.code == 0, done.text
    rows = rows_of(done)
    assert {"single", "dp", "ddp", "torch-ddp"} <= set(rows)
    exact = [name for name in STRATEGIES.names() if STRATEGIES.get(name).exact]
    assert {rows[name]["digest"] for name in exact} == {rows["single"]["digest"]}
    assert {rows[name]["parity"] for name in exact if name != "single"} == {"same bits"}
    assert "other order of summation" in rows["torch-ddp"]["parity"]
    assert " at the end (" in rows["torch-ddp"]["parity"]
    assert "norm" not in rows["torch-ddp"]["parity"], "the weights are there, so the difference is exact"
    assert {name for name, row in rows.items() if row["why_not"]} <= {"torch-dp"}, "which needs CUDA devices"
    for row in (one for one in rows.values() if not one["why_not"]):
        processes = 1 if row["name"].startswith(("single", "dp")) else row["workers"]
        assert len(row["peak_memory"]) == len(row["ranks"]) == processes
        assert row["memory_measure"] == "peak RSS"
        assert re.search(r"\d", row["why"]), "the reason is a measured number"
    assert rows["single"]["speed_up"] == 1.0
    assert rows["single"]["threads"] == rows["torch-ddp"]["threads"]


def test_repeated(tmp_path: Path, cli: CommandLine) -> None:
    ways = ("single", "ddp", "torch-ddp")
    done = cli("compare", TINY, "--strategies", ",".join(ways), "--repeats", "2", "--json", "--out", "out")
    assert done.code == 0, done.text
    comparison, rows = json.loads(done.out), rows_of(done)
    for row in rows.values():
        assert row["repeats"] == 2
        folder = re.sub(r"\W+", "-", row["name"])
        results = [json.loads((tmp_path / "out" / f"{folder}-{n}" / "result.json").read_text()) for n in (1, 2)]
        assert row["digest"], "a repeated run must give the same bits"
        assert row["seconds_spread"] == sorted(result["seconds"] for result in results)
        assert row["seconds"] == statistics.mean(row["seconds_spread"])
        assert row["metrics"] == results[-1]["metrics"]
    assert re.match(r"(Fastest: |No clear winner: the spreads of )\S+", comparison["recommendation"][0])
    assert comparison["settings"]["command"].startswith("lockstep compare ")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"torch-ddp-2", "plan.json", "report.html", "comparison.md"} <= names
    assert (tmp_path / "out" / "torch-ddp-1" / "final.safetensors").is_file()
    assert not (tmp_path / "out" / "torch-ddp-2" / "final.safetensors").exists(), "the weights are kept once per way"


@pytest.mark.soak  # docs/compare.md has one
def test_a_sweep_over_lanes(tmp_path: Path, cli: CommandLine) -> None:
    options = ["--lanes", "2,4", "--workers", "2", "--steps", "3", "--repeats", "1", "--strategies", "single,ddp"]
    done = cli.apart("compare", "mlp", *options, "--json", "--out", "out")
    assert done.code == 0, done.text
    comparison, rows = json.loads(done.out), rows_of(done)
    assert {"single, 2 lanes", "ddp, 2 lanes", "single, 4 lanes", "ddp, 4 lanes"} <= set(rows)
    assert comparison["settings"]["lanes"] == "2, 4"
    for lanes in (2, 4):
        single, ddp = rows[f"single, {lanes} lanes"], rows[f"ddp, {lanes} lanes"]
        assert single["digest"] == ddp["digest"]
        assert ddp["parity"] == "same bits"
        assert (single["lanes"], ddp["lanes"]) == (lanes, lanes)
    assert rows["ddp, 2 lanes"]["digest"] != rows["ddp, 4 lanes"]["digest"]
    assert any("4 lanes in place of 2" in sentence for sentence in comparison["recommendation"])
    assert "What lanes cost" in (tmp_path / "out" / "report.html").read_text()
    again = cli.apart("report", "out", "--json")
    assert rows_of(again) == rows, "a report of the folder has the same rows"


def test_table(cli: CommandLine) -> None:
    done = cli("compare", TINY, "--repeats", "1", "--steps", "4", "--strategies", "torch-ddp", "--per-rank")
    assert done.code == 0, done.text
    for word in ("strategy", "samples/s", "peak RSS", "accuracy", "where a step goes", "by rank", "why torch-ddp: "):
        assert word in done.out


def test_a_row_that_cannot_run_says_why(cli: CommandLine) -> None:
    done = cli("compare", TINY, "--repeats", "1", "--steps", "2", "--workers", "1", "--json")
    assert done.code == 0, done.text
    rows = rows_of(done)
    assert "needs at least 2 workers" in rows["torch-ddp"]["why_not"]
    assert rows["single"]["repeats"] == 1


def test_a_way_that_fails_in_the_middle_is_a_row(cli: CommandLine) -> None:
    """The fault strikes rank 1 in step 3, so `single` knows nothing of it."""
    done = cli("compare", f"{TINY}:raises", "--strategies", "ddp,single", "--repeats", "1", "--json")
    assert done.code == 0, done.text
    rows = rows_of(done)
    assert rows["single"]["repeats"] == 1
    assert "failed at step 3: ValueError: the fourth batch is cursed" in rows["ddp"]["why_not"]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (f"{TINY}:nan", "the loss is nan at step 1, lane 1, rank 0: lower the learning rate, clip gradients, or look"),
        (
            f"{TINY}:large",
            f"before the first step, asking for 16,384 TiB; {LEANER} (traceback in single-1/result.json)",
        ),
    ],
)
def test_what_no_way_can_train_is_told(recipe: str, words: str, cli: CommandLine) -> None:
    done = cli("compare", recipe, "--strategies", "single", "--threads", "2", "--json")
    assert done.code == 1, done.text
    assert words in rows_of(done)["single"]["why_not"]


def test_a_recipe_that_is_not_deterministic_is_found_by_running_twice(cli: CommandLine) -> None:
    done = cli("compare", f"{TINY}:unsteady", "--strategies", "single", "--threads", "2", "--repeats", "2", "--json")
    assert done.code == 0, done.text
    row = rows_of(done)["single"]
    assert row["digest"] == ""
    # After one step the noise shows in one of the two tensors, or in both.
    pattern = (
        rf"repeats 1 and 2 differ, first after step 0 in 0\.(weight|bias): not deterministic: {re.escape(STEADIER)}"
    )
    assert any(re.fullmatch(pattern, note) for note in row["notes"]), row["notes"]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
def test_interrupted_it_reports_and_resume_goes_on(number: signal.Signals, tmp_path: Path, cli: CommandLine) -> None:
    marked = Marked()
    command = [LOCKSTEP, "compare", f"{TINY}:slow", "--strategies", "single,ddp", "--threads", "2", "--steps", "3"]
    process = marked.start([*command, "--repeats", "2", "--out", "out", "--json"], tmp_path)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("out/*/rank-0.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    done = finish(process)
    assert done.code == 130, done.text
    assert sorted(row["repeats"] for row in rows_of(done).values()) == [0, 1]
    assert "lockstep compare --resume out" in done.err
    assert not marked.survivors()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/*/result.json")}
    assert len(kept) == 1
    done = cli("compare", "--resume", "out", "--repeats", "1", "--json")
    assert done.code == 0, done.text
    assert [row["repeats"] for row in rows_of(done).values()] == [1, 1]
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


@pytest.mark.soak  # the guide does it step by step
def test_a_new_users_recipe_goes_to_a_report_with_one_command(tmp_path: Path, cli: CommandLine) -> None:
    recipe = tmp_path / "my_recipe.py"
    recipe.write_text(EXAMPLE.read_text())
    done = cli.apart("compare", "my_recipe.py", "--steps", "8", "--repeats", "1")
    assert done.code == 0, done.text
    assert "Fastest: " in done.out or "No clear winner" in done.out
    assert "same bits" in done.out
    assert list(tmp_path.glob("runs/*-compare-my_recipe/report.html"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TINY, "--strategies", "single,ddd"], "no strategy called 'ddd'"),
        ([TINY, "--strategies", ","], "--strategies is empty"),
        ([TINY, "--strategies", "single,single"], "each at most once"),
        (["none.py"], "none.py does not exist"),
        ([TINY, "--workers", "0"], "--workers 0: at least 1"),
        ([TINY, "--lanes", "2,0"], "--lanes 2,0: at least 1"),
        ([TINY, "--threads", "0"], "found --threads 0, expected a number from 1 up, or all"),
        ([TINY, "--workers", "two"], "numbers separated by commas"),
        (["--resume", "none"], "has no plan.json"),
        ([TINY, "--resume", "none", "--workers", "2"], "leave out workers"),
    ],
)
def test_refused(arguments: list[str], words: str, cli: CommandLine) -> None:
    done = cli("compare", *arguments)
    assert done.code == 2, done.text
    assert words in done.err


@pytest.mark.parametrize(("text", "words"), [(None, "does not exist"), ("x = 1\n", "my.py` writes one from a script")])
def test_a_recipe_that_cannot_be_loaded_is_refused_at_once(
    text: str | None, words: str, cli: CommandLine, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "my.py").write_text(text)
    done = cli("compare", "my.py", "--strategies", "single,dp,ddp", "--out", "out")
    assert done.code == 2, done.text
    assert words in done.err
    assert done.err.count("repeat 1 of 3") == 1, "no other way would get further"
    assert not (tmp_path / "out").exists()


def test_doctor(cli: CommandLine) -> None:
    done = cli("doctor", "--json")
    decision = json.loads(done.out)
    assert decision["started_by"] == "inline"
    assert decision["launchers"]["spawn"] == "yes"
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host-a", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1"}
    done = cli("doctor", env=env)
    assert done.code == 0, done.text
    for line in ("started by: manual", "MASTER_ADDR: host-a", "rendezvous: host-a:29511", "OMP_NUM_THREADS=1"):
        assert line in done.out
