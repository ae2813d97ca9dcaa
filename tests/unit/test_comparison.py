"""Running a comparison's plan, with runs made up in place of real ones: order, time, failures, going on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lockstep.comparison import run as running
from lockstep.comparison.display import Display
from lockstep.comparison.plan import fits, read_plan, turns, ways, write_plan
from lockstep.comparison.run import Ran, run_all
from lockstep.errors import BadInput, RunFailed
from lockstep.report.compare import judge
from lockstep.report.notes import LEANER
from lockstep.train.preflight import preflight
from lockstep.train.records import write_document
from lockstep.train.schema.plan_json import ComparisonPlan, Way
from lockstep.train.schema.result_json import Failed
from lockstep.train.spec import RunSpec, versions
from tests.commands import CommandLine
from tests.unit.report.folders import change, make_run

SPEC = RunSpec(recipe="mlp", lanes=4)


def plan(repeats: int = 2, limit: float | None = None, names: tuple[str, ...] = ("single", "ddp")) -> ComparisonPlan:
    rows = tuple(
        Way(name=name, spec=RunSpec(recipe="mlp", strategy=name, workers=1 + (name != "single"))) for name in names
    )
    return ComparisonPlan(
        title="t", command="c", ways=rows, repeats=repeats, time_limit=limit, source="", versions=versions()
    )


def made(spec: RunSpec, folder: Path) -> Path:
    return make_run(folder, strategy=spec.strategy, workers=spec.workers)


def go(
    asked: ComparisonPlan,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[RunSpec, Path], Path] = made,
) -> Ran:
    monkeypatch.setattr(running, "start_run", start)
    folder.mkdir(exist_ok=True)
    return run_all(asked, folder, Display(4, 2))


def test_rows_of_one_number_of_workers() -> None:
    rows = ways(SPEC, ["single", "dp", "ddp"], [2], [4], 4)
    assert [way.name for way in rows] == ["single", "single, 4 threads", "dp", "ddp"]
    assert [way.spec.workers for way in rows] == [1, 1, 2, 2]
    assert [way.spec.threads for way in rows] == [1, 4, 1, 1]
    assert {way.spec.lanes for way in rows} == {4}
    assert rows[1].folder(2) == "single-4-threads-2"


def test_rows_of_a_scaling_curve() -> None:
    rows = ways(RunSpec(recipe="mlp"), ["single", "ddp"], [1, 2, 4], [4], 8)
    assert [way.name for way in rows] == ["single", "single, 8 threads", "ddp, 2 workers", "ddp, 4 workers"]
    assert {way.spec.lanes for way in rows} == {4}
    assert {way.spec.threads for way in rows} == {1, 8}
    device = ways(RunSpec(recipe="mlp", device="cuda"), ["single", "ddp"], [2], [4], 8)
    assert [way.name for way in device] == ["single", "ddp", "ddp, inexact"]
    assert [way.spec.exact for way in device] == [True, True, False]
    alone = ways(RunSpec(recipe="mlp"), ["ddp"], [1, 2], [2], 2)
    assert [way.name for way in alone] == ["ddp, 1 worker", "ddp, 2 workers"]


def test_rows_of_a_sweep_over_lanes() -> None:
    rows = ways(RunSpec(recipe="mlp"), ["single", "ddp"], [2], [2, 8], 4)
    assert [(way.name, way.spec.lanes, way.spec.workers, way.spec.threads) for way in rows] == [
        ("single, 2 lanes", 2, 1, 1),
        ("single, 2 lanes, 4 threads", 2, 1, 4),
        ("ddp, 2 lanes", 2, 2, 1),
        ("single, 8 lanes", 8, 1, 1),
        ("ddp, 8 lanes", 8, 2, 1),
    ]
    assert rows[2].folder(1) == "ddp-2-lanes-1"
    both = ways(RunSpec(recipe="mlp"), ["ddp"], [1, 2], [2, 4], 2)
    assert [way.name for way in both] == [
        "ddp, 1 worker, 2 lanes",
        "ddp, 2 workers, 2 lanes",
        "ddp, 1 worker, 4 lanes",
        "ddp, 2 workers, 4 lanes",
    ]


def test_turns_are_interleaved_shuffled_and_repeatable() -> None:
    asked = plan(repeats=20, names=("single", "dp", "ddp", "torch-ddp"))
    runs = turns(asked)
    for repeat in range(20):
        group = runs[repeat * 4 : repeat * 4 + 4]
        assert {number for number, _ in group} == {repeat + 1}
        assert {way.name for _, way in group} == {"single", "dp", "ddp", "torch-ddp"}
    assert len({tuple(way.name for _, way in runs[at : at + 4]) for at in range(0, 80, 4)}) > 5
    assert turns(asked) == runs
    assert [way.name for _, way in runs[:2]] == ["single", "ddp"]


def test_the_first_turn_ends_with_what_only_shows_more_threads() -> None:
    rows = ways(RunSpec(recipe="mlp"), ["dp", "single", "ddp"], [2], [None], 4)
    first = [way.name for repeat, way in turns(structs.replace(plan(), ways=rows)) if repeat == 1]
    assert first == ["single", "ddp", "dp", "single, 4 threads"]


@pytest.mark.parametrize(
    ("limit", "elapsed", "own", "every", "expected"),
    [
        (None, 1e9, [5.0], [5.0], True),
        (60.0, 50.0, [8.0, 10.0], [1.0], True),
        (60.0, 51.0, [8.0, 10.0], [1.0], False),
        (60.0, 55.0, [], [9.0, 4.0], True),
        (60.0, 57.0, [], [9.0, 4.0], False),
        (60.0, 0.0, [], [], True),
    ],
)
def test_time(limit: float | None, elapsed: float, own: list[float], every: list[float], expected: bool) -> None:
    assert fits(limit, elapsed, own, every) is expected


def test_every_way_runs_as_often_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = go(plan(), tmp_path, monkeypatch)
    assert {way.name: len(way.runs) for way in ran.ways} == {"single": 2, "ddp": 2}
    assert not ran.stopped
    assert {path.name for path in tmp_path.iterdir()} == {"single-1", "single-2", "ddp-1", "ddp-2"}


def test_a_time_limit_ends_repeats_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("lockstep.comparison.run.time.monotonic", lambda: float(next(clock)))
    ran = go(plan(repeats=5, limit=100.0), tmp_path, monkeypatch)
    counts = [len(way.runs) for way in ran.ways]
    assert ran.stopped == "the time limit of 100 s"
    assert min(counts) >= 1
    assert sum(counts) < 10


def test_a_way_that_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(spec: RunSpec, folder: Path) -> Path:
        if spec.strategy == "ddp" and folder.name.endswith("2"):
            raise RunFailed("rank 1 on host-a failed at step 3:\nTraceback\nValueError: cursed")
        if spec.strategy == "dp":
            raise RunFailed("rank 0 on host-a failed before the first step:\nTraceback\nMemoryError")
        return made(spec, folder)

    ran = go(plan(repeats=3, names=("single", "dp", "ddp")), tmp_path, monkeypatch, start)
    single, dp, ddp = judge("t", ran.ways).rows
    assert (single.repeats, dp.repeats, ddp.repeats) == (3, 0, 1)
    assert dp.why_not == (
        f"does not fit into memory: rank 0 on host-a failed before the first step, MemoryError; {LEANER} "
        "(traceback in dp-1/result.json)"
    )
    assert "repeat 2: rank 1 on host-a failed at step 3: ValueError: cursed (traceback in ddp-2/" in ddp.notes[0]


def test_a_peer_that_is_not_installed_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.registry.peers.find_spec", lambda name: None)

    def start(spec: RunSpec, folder: Path) -> Path:
        if spec.strategy == "lightning":
            preflight(spec, folder)  # what every run begins with
        return made(spec, folder)

    ran = go(plan(names=("single", "lightning")), tmp_path, monkeypatch, start)
    single, peer = judge("t", ran.ways).rows
    assert (single.repeats, peer.repeats) == (2, 0)
    assert "which is not installed: pip install 'lockstep-train[peers]'" in peer.why_not


def test_if_all_are_refused_what_was_asked_is_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(spec: RunSpec, folder: Path) -> Path:
        raise BadInput("no such recipe:\n  look\n  again")

    with pytest.raises(BadInput, match=r"^no way can run: no such recipe:\n  look\n  again$"):
        go(plan(), tmp_path / "out", monkeypatch, start)
    assert not (tmp_path / "out").exists()
    assert "no such recipe" not in capfd.readouterr().err, "the error says it, once"


def test_all_refused_for_two_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(spec: RunSpec, folder: Path) -> Path:
        raise BadInput("too few" if spec.strategy == "dp" else "too many")

    with pytest.raises(BadInput) as told:
        go(plan(names=("single", "dp", "ddp")), tmp_path / "out", monkeypatch, start)
    assert str(told.value).splitlines() == ["no way can run:", "  single; ddp: too many", "  dp: too few"]


def test_a_reason_of_several_ways_is_said_once_as_soon_as_another_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = plan(repeats=1, names=("single", "dp", "ddp"))
    *refused, last = [way.name for _, way in turns(asked)]

    def start(spec: RunSpec, folder: Path) -> Path:
        if spec.strategy in refused:
            raise BadInput("not here")
        return made(spec, folder)

    go(asked, tmp_path, monkeypatch, start)
    said = [line for line in capfd.readouterr().err.splitlines() if not line.endswith("...")]
    assert said[0] == f"{'; '.join(refused)}: not here"
    assert said[1].startswith(f"{last}, repeat 1: ")
    assert len(said) == 2


def test_what_is_done_stays_when_all_are_refused_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(spec: RunSpec, folder: Path) -> Path:
        if folder.name.endswith("-2"):
            raise BadInput("the data are gone")
        return made(spec, folder)

    ran = go(plan(), tmp_path, monkeypatch, start)
    assert all(row.repeats == 1 and "the data are gone" in row.notes[0] for row in judge("t", ran.ways).rows)
    assert (tmp_path / "single-1" / "result.json").exists()


@pytest.mark.parametrize("how", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupted_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: BaseException) -> None:
    started: list[str] = []

    def start(spec: RunSpec, folder: Path) -> Path:
        started.append(folder.name)
        if len(started) == 2:
            folder.mkdir()  # half a run
            raise how
        return made(spec, folder)

    ran = go(plan(), tmp_path, monkeypatch, start)
    assert ran.interrupted
    first = judge("t", ran.ways)
    assert sorted(row.repeats for row in first.rows) == [0, 1]
    assert any(row.why_not.startswith("its turn did not come: interrupted. Go on with") for row in first.rows)

    ran = go(plan(), tmp_path, monkeypatch, start)
    assert not ran.interrupted
    assert [len(way.runs) for way in ran.ways] == [2, 2]
    assert started[1] == started[2], "the unfinished run is done again"
    assert len(started) == 5, "the finished one is not"


def test_a_damaged_or_failed_run_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(plan(), tmp_path, monkeypatch)
    (tmp_path / "ddp-1" / "rank-0.jsonl").write_text('{"rank": 0}\n{"ste')
    write_document(tmp_path / "single-2" / "result.json", Failed(rank=0, step=2, finite=True, why="cursed"))
    started: list[str] = []

    def start(spec: RunSpec, folder: Path) -> Path:
        started.append(folder.name)
        return made(spec, folder)

    go(plan(), tmp_path, monkeypatch, start)
    assert sorted(started) == ["ddp-1", "single-2"]


def test_a_plan_is_kept(tmp_path: Path) -> None:
    asked = plan(limit=30.0)
    write_plan(tmp_path, asked)
    assert read_plan(tmp_path) == asked


@pytest.mark.parametrize(
    ("typed", "repeats", "limit"),
    [([], 2, 30.0), (["--repeats", "5"], 5, 30.0), (["--time-limit", "70"], 2, 70.0)],
)
def test_a_comparison_goes_on_as_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], repeats: int, limit: float, cli: CommandLine
) -> None:
    folder, kept = tmp_path / "out", []

    def run_kept(asked: ComparisonPlan, out: Path, display: Display) -> Ran:
        kept.append(asked)
        return run_all(asked, out, display)

    folder.mkdir()
    write_plan(folder, plan(limit=30.0))
    monkeypatch.setattr(running, "start_run", made)
    monkeypatch.setattr(running, "run_all", run_kept)
    done = cli("compare", "--resume", "out", *typed)
    assert done.code == 0, done.text
    assert (kept[0].repeats, kept[0].time_limit) == (repeats, limit)
    assert f"tiny: 4 lanes, 6 steps, {repeats} repeats each" in done.out
    assert read_plan(folder) == kept[0], "what is given anew holds the next time too"


@pytest.mark.parametrize(
    ("failed", "often"),
    [((), "2 repeats each"), (("ddp-2",), "up to 2 repeats each"), (("ddp-2", "single-2"), "one run each")],
)
def test_compare_and_report_give_the_same_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: tuple[str, ...], often: str, cli: CommandLine
) -> None:
    def start(spec: RunSpec, folder: Path) -> Path:
        made(spec, folder)
        if folder.name in failed:
            write_document(folder / "result.json", Failed(rank=0, step=2, finite=True, why="cursed"))
            raise RunFailed("cursed")
        return folder

    (tmp_path / "out").mkdir()
    write_plan(tmp_path / "out", plan())
    monkeypatch.setattr(running, "start_run", start)
    done = [cli(*command, "--json") for command in (["compare", "--resume", "out"], ["report", "out"])]
    assert [one.code for one in done] == [0, 0], done
    assert [json.loads(one.out)["title"] for one in done] == [f"tiny: 4 lanes, 6 steps, {often}"] * 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"versions": {"torch": "1.0"}}, "begun with other versions .*torch 1.0, here"),
        ({"versions": None}, "versions is null, expected an object"),
        ({"ways": [{"name": "x", "spec": {}}]}, "ways, entry 1, spec, recipe is missing"),
        ({"ways": [{"name": "x", "spec": {"recipe": "mlp"}}]}, "ways, entry 1, spec, backend is missing"),
        ({"repeats": "many"}, 'repeats is "many", expected a whole number'),
        ({"source": "0123"}, "the recipe mlp has changed"),
        ({"schema": 99}, "schema version 99"),
    ],
)
def test_a_plan_of_another_time_is_refused(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    write_plan(tmp_path, plan())
    change(tmp_path / "plan.json", **fields)
    before = (tmp_path / "plan.json").read_text()
    with pytest.raises(BadInput, match=words):
        read_plan(tmp_path)
    with pytest.raises(BadInput, match=r"has no plan\.json: --resume wants the folder"):
        read_plan(tmp_path / "none")
    assert (tmp_path / "plan.json").read_text() == before, "a plan that is refused stays as it is"


def test_a_plan_that_names_code_in_its_folder_is_refused(tmp_path: Path) -> None:
    """Unless the recipe is typed: also one way of several must not bring its own."""
    evil = tmp_path / "evil.py"
    evil.write_text("raise SystemExit('it ran')")
    asked = plan()
    last = structs.replace(asked.ways[-1], spec=replace(asked.ways[-1].spec, recipe=str(evil)))
    write_plan(tmp_path, structs.replace(asked, ways=(*asked.ways[:-1], last)))
    with pytest.raises(BadInput, match=r"evil\.py', which lies inside that folder.*lockstep compare RECIPE --resume"):
        read_plan(tmp_path)
    assert {way.spec.recipe for way in read_plan(tmp_path, "mlp").ways} == {"mlp"}


def test_a_terminal_gets_a_bar_and_a_file_gets_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    way = plan().ways[0]
    (tmp_path / "rank-0.jsonl").write_text("{}\n" * 4)
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "140")
        with Display(4, 2) as display:
            display.begin(way, 1, 0, tmp_path)
            display.done(way, 1, 0.0123)
            display.failed(way, 2, "no GPU")
        text = capsys.readouterr().err
        assert "single, repeat 1 of 2" in text
        assert "no GPU" in text
        assert ("step 3" in text) is terminal
        assert ("(1 of 4) ..." in text) is not terminal
