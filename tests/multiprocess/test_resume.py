"""Runs that are broken off and resumed: the digest of an unbroken one, and every refusal."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockstep.errors import BadInput, RunFailed
from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train import checkpoint
from lockstep.train.checkpoint_folder import kept
from lockstep.train.folder_lock import holding
from lockstep.train.records import write_document
from lockstep.train.resume import read_standing, resumed_spec
from lockstep.train.schema.rank_jsonl import CheckpointLine, read_rank
from lockstep.train.schema.result_json import Done as Result
from lockstep.train.schema.run_json import read_setup
from lockstep.train.spec import RunSpec, source_of, versions
from tests.commands import RECIPES, CommandLine, Done

RECIPE = str(RECIPES / "resumed.py")
STEPS = 16


def begin(out: Path, function: str = "", **order: Any) -> Path:
    fields = {"recipe": f"{RECIPE}{function}", "threads": 1, "lanes": 4, "progress": False}
    return start_run(RunSpec(**{**fields, **order}), out)


def go_on(folder: Path, **given: Any) -> Result:
    """Resume as the command line does; return the result."""
    spec = resumed_spec(read_standing(folder), {"recipe": RECIPE, **given})
    return read_finished(start_run(spec, folder)).result


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tuple[float, ...]]:
    run = read_finished(begin(tmp_path_factory.mktemp("unbroken") / "out"))
    return run.result.digest, run.losses


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was asked for 5 steps and did them."""
    return begin(tmp_path_factory.mktemp("stopped") / "out", steps=5, checkpoint_every=2)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_worker_is_killed_and_half_of_them_go_on(tmp_path: Path, unbroken: tuple[str, tuple[float, ...]]) -> None:
    out = tmp_path / "out"
    words = r"rank 1 .* failed at step 10[\s\S]*\ngo on from its checkpoint after step 8 with: lockstep run --resume"
    with pytest.raises(RunFailed, match=words):
        begin(out, ":killed", strategy="ddp", workers=4, launcher="spawn", checkpoint_every=3)
    assert [path.name for path in kept(out)] == ["checkpoint-000009.safetensors", "checkpoint-000006.safetensors"]
    result = go_on(out, workers=2)
    assert result.digest == unbroken[0]
    assert [(one.step, one.written_by, one.warnings) for one in result.resumed] == [(9, "ddp on 4 workers", ())]
    run = read_finished(out)
    assert run.losses == pytest.approx(unbroken[1], rel=1e-12)
    assert [line.step for line in run.steps[0]] == list(range(9, STEPS))
    # Over collectives the others may notice the death by themselves, and say so, before they are ended.
    assert [name for name in names(out / "attempt-1") if not name.endswith(".error.json")] == [
        "fingerprints.jsonl",
        *(f"rank-{rank}.jsonl" for rank in range(4)),
        "result.json",
        "run.json",
    ]
    assert names(out) == [
        "attempt-1",
        "checkpoint-000015.safetensors",
        "checkpoint-000016.safetensors",
        "final.safetensors",
        "fingerprints.jsonl",
        "rank-0.jsonl",
        "rank-1.jsonl",
        "result.json",
        "run.json",
    ]
    lines = read_rank(out / "rank-0.jsonl")
    assert [line.steps for line in lines if isinstance(line, CheckpointLine)] == [12, 15, 16]
    assert result.checkpoint_seconds > 0


def test_the_writer_is_killed_and_another_launcher_goes_on(tmp_path: Path, unbroken: tuple[str, Any]) -> None:
    out = tmp_path / "out"
    with pytest.raises(RunFailed, match=r"(?s)rank 0 .*SIGKILL"):
        begin(out, ":writer_killed", strategy="ddp", workers=2, launcher="spawn", checkpoint_every=4)
    assert not list(out.glob(".*")), "a draft without a name is gone with its writer"
    result = go_on(out, launcher="torchrun")
    assert result.digest == unbroken[0]
    assert result.resumed[0].step == 4
    assert not list(out.glob(".*"))


def test_twice_between_epochs_and_strategies(stopped: Path, tmp_path: Path, unbroken: tuple[str, Any]) -> None:
    """Asked for half of it, then for more, as threads; then the rest, as one worker."""
    out = begin(tmp_path / "out", steps=8, checkpoint_every=8)
    half = go_on(out, steps=12, strategy="dp", workers=3)
    assert (half.steps, half.resumed[0].step) == (12, 8)
    whole = go_on(out, epochs=2, strategy="single", workers=1)
    assert whole.digest == unbroken[0]
    assert [one.step for one in whole.resumed] == [8, 12]
    assert read_finished(out).losses == pytest.approx(unbroken[1], rel=1e-12)


def test_the_stock_strategy_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    order: dict[str, Any] = {"strategy": "torch-ddp", "workers": 2, "launcher": "spawn"}
    whole = read_finished(begin(tmp_path / "whole", **order)).result
    out = begin(tmp_path / "out", steps=5, checkpoint_every=5, **order)
    assert go_on(out, epochs=2).digest == whole.digest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "2"], "was written with threads 1, and here it is 2; threads per worker are part of the arith"),
        (["--lanes", "3"], "was written with lanes 4, and here it is 3: use --lanes 4"),
        (["--seed", "7"], "was written with seed 0, and here it is 7: use --seed 0"),
        (["--global-batch", "24"], "was written with global batch 12, and here it is 24: use --global-batch 12"),
        ([str(RECIPES / "tiny.py")], "was written with recipe resumed, and here it is tiny"),
        ([f"{RECIPE}:unclipped"], "was written with clip 0.5, and here it is None"),
        ([f"{RECIPE}:more"], "was begun with 96 samples, and the data has 120 now"),
        (["--sync-batchnorm"], "was written with sync batchnorm False, and here it is True"),
        (["--inexact"], "was written with exact True, and here it is False"),
        (["--checkpoint-every", "0"], "--checkpoint-every 0: at least 1"),
        (["--checkpoint-every", "-3"], "--checkpoint-every -3: at least 1"),
        (["--out", "other"], "leave --out out"),
        (["--steps", "5"], "is complete: 5 of 5 steps are done. To train longer, give --steps or --epochs"),
    ],
)
def test_refused(arguments: list[str], words: str, stopped: Path, tmp_path: Path, cli: CommandLine) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*")}
    longer = [] if "--steps" in arguments else ["--steps", "9"]
    done = cli("run", "--resume", str(stopped), *longer, *arguments)
    assert words in done.err, done.text
    assert done.code == 2, done.text
    assert {path: path.read_bytes() for path in stopped.rglob("*")} == before
    assert not list(tmp_path.iterdir())


def resume(folder: str, cli: CommandLine) -> Done:
    return cli("run", "--resume", folder, "--steps", "9")


def test_nothing_to_resume(tmp_path: Path, cli: CommandLine) -> None:
    done = resume("none", cli)
    assert "none: there is no such folder" in done.err
    assert done.code == 2
    out = begin(tmp_path / "out", steps=1)
    done = resume("out", cli)
    assert "out has no checkpoint, so there is nothing to resume" in done.err
    assert done.code == 2
    (out / "run.json").write_text("{")
    done = resume("out", cli)
    assert "run.json: the JSON is cut short" in done.err
    assert done.code == 2


def test_a_run_that_is_still_running(stopped: Path, cli: CommandLine) -> None:
    with holding(stopped):
        done = resume(str(stopped), cli)
    assert "another process is training in" in done.err
    assert done.code == 2


def test_another_model(tmp_path: Path) -> None:
    out = begin(tmp_path / "out", steps=2, checkpoint_every=1)
    with pytest.raises(RunFailed, match=r"another model: parameter 0.weight is float32 \(16, 8\) there, .*\(32, 8\)"):
        go_on(out, recipe=f"{RECIPE}:wider", steps=3)


def test_another_version_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = versions()
    monkeypatch.setattr(checkpoint, "versions", lambda: {**here, "torch": "1.0"})
    out = begin(tmp_path / "out", steps=2, checkpoint_every=1)
    monkeypatch.undo()
    (out / "checkpoint-000002.safetensors").write_bytes(b"damaged")
    result = go_on(out, steps=3)
    warnings = result.resumed[-1].warnings
    assert f"torch 1.0 wrote the checkpoint, here is {here['torch']}: bits may differ" in warnings
    (passed_over,) = (one for one in warnings if "checkpoint-000002.safetensors has 7 bytes" in one)
    assert passed_over.endswith("Went on from checkpoint-000001.safetensors")
    assert capfd.readouterr().err.count("lockstep: warning: ") == 2
    assert result.resumed[-1].step == 1


def test_the_command(stopped: Path, cli: CommandLine) -> None:
    """A whole run by the command line, then more of it."""
    done = cli(
        "run", RECIPE, "--threads", "1", "--lanes", "4", "--steps", "3", "--checkpoint-every", "2", "--out", "out"
    )
    assert done.code == 0, done.text
    done = cli("run", "--resume", "out", "--steps", "5", "--json")
    assert done.code == 0, done.text
    assert json.loads(done.out)["result"]["digest"] == read_finished(stopped).result.digest


def test_what_is_not_given_stays_as_it_was(stopped: Path) -> None:
    standing = read_standing(stopped)
    ways: list[tuple[dict[str, Any], str, str]] = [
        ({}, "single", "inline"),
        ({"workers": 3}, "ddp", "spawn"),
        ({"workers": 2, "strategy": "dp"}, "dp", "inline"),
        ({"workers": 2, "launcher": "torchrun"}, "ddp", "torchrun"),
    ]
    for given, strategy, launcher in ways:
        found = resumed_spec(standing, {"strategy": None, **given})
        assert (found.strategy, found.launcher) == (strategy, launcher)
        assert (found.lanes, found.threads, found.steps) == (4, 1, 5)
    spec = replace(standing.setup.spec, launcher="manual", workers=2, strategy="torch-ddp")
    again = replace(standing, setup=structs.replace(standing.setup, spec=spec))
    assert resumed_spec(again, {}).launcher == "spawn"
    assert resumed_spec(standing, {"epochs": 3}).steps is None


@pytest.mark.parametrize("command", [("run", "--resume"), ("report",)])
def test_code_that_came_with_a_folder_is_not_run(
    stopped: Path, tmp_path: Path, command: tuple[str, ...], cli: CommandLine
) -> None:
    folder, ran = tmp_path / "sent", tmp_path / "ran"
    shutil.copytree(stopped, folder)
    evil = folder / "recipe.py"
    evil.write_text(f"open({str(ran)!r}, 'w')")
    setup = read_setup(folder)
    facts = structs.replace(setup.recipe, source=source_of(str(evil)))
    spec = replace(setup.spec, recipe=str(evil), steps=9)
    write_document(folder / "run.json", structs.replace(setup, spec=spec, recipe=facts))
    done = cli(*command, str(folder))
    assert not ran.exists()
    if command == ("report",):
        assert done.code == 0, done.text
    else:
        assert (done.code, done.err.count("\n")) == (2, 1), done.text
        assert "recipe.py', which lies inside that folder" in done.err
        assert f"type it: lockstep run RECIPE --resume {folder}" in done.err


def test_an_edited_recipe_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = Path(RECIPE)
    for name in (source.name, "tiny.py"):
        (tmp_path / name).write_bytes((source.parent / name).read_bytes())
    edited = tmp_path / source.name
    out = start_run(
        RunSpec(recipe=str(edited), steps=5, checkpoint_every=5, lanes=4, threads=1, progress=False), tmp_path / "out"
    )
    edited.write_text(edited.read_text().replace("[4, 10]", "[4, 11]"))
    with pytest.raises(BadInput, match="has another content than when the run began"):
        resumed_spec(read_standing(out), {})
    result = go_on(out, recipe=str(edited), steps=8)
    first, second = result.resumed[-1].warnings
    assert first.startswith(f"the recipe file {edited} was changed since the run began: bits may differ")
    assert second.startswith("milestones of the schedule MultiStepLR was ")
    assert f"lockstep: warning: {first}" in capfd.readouterr().err
    assert go_on(out, recipe=str(edited), steps=9).resumed[-1].warnings[1:] == (), "the file is what it was last time"
