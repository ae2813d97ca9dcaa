"""Runs on devices as a user starts them: one digest over strategies and workers, failures, and everything refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import RECIPES, CommandLine
from tests.devices import only_devices

pytestmark = only_devices

TINY = str(RECIPES / "tiny.py")
ON_DEVICE = str(RECIPES / "on_device.py")
SEGMENT = 1 << 21
"""Bytes that the pretend devices reserve at a time."""
SHORT = ["--lanes", "4", "--threads", "1", "--steps", "4"]


def result(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return read


def test_the_first_document_in_one_line(cli: CommandLine, tmp_path: Path) -> None:
    names = "single,dp,torch-dp,ddp,torch-ddp"
    asked = ["--device", "pretend", "--strategies", names, "--workers", "2", *SHORT, "--repeats", "1"]
    done = cli("compare", TINY, *asked, "--out", "out", "--json")
    assert done.code == 0, done.text
    rows = {row["name"]: row for row in json.loads(done.out)["rows"]}
    assert list(rows) == ["single", "dp", "torch-dp", "ddp", "ddp, inexact", "torch-ddp"]
    assert "CUDA devices" in rows["torch-dp"]["why_not"]
    assert all(not rows[name]["why_not"] for name in rows if name != "torch-dp")
    digests = [result(tmp_path / "out" / f"{name}-1")["digest"] for name in ("single", "dp", "ddp")]
    assert len(set(digests)) == 1


def test_memory_by_rank_is_the_device_s(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("run", TINY, "--strategy", "ddp", "--workers", "2", *SHORT, "--out", "out").code == 0
    found = result(tmp_path / "out")
    assert found["memory_measure"] == "peak allocated on the device"
    assert found["device"] == "pretend:0"
    assert all(0 < peak < 1 << 24 for peak in found["peak_memory"])
    assert [rank["peak_reserved"] for rank in found["ranks"]] == found["peak_reserved"]
    for peak, reserved in zip(found["peak_memory"], found["peak_reserved"], strict=True):
        assert reserved > peak
        assert reserved % SEGMENT == 0
    assert "reserved" in cli("report", "out").out
    assert found["backend"] == "pccl"


def test_a_run_is_resumed_on_another_number_of_workers(cli: CommandLine, tmp_path: Path) -> None:
    whole = ["--lanes", "4", "--threads", "1"]
    assert cli("run", TINY, "--workers", "1", *whole, "--steps", "6", "--out", "whole").code == 0
    assert (
        cli("run", TINY, "--workers", "2", *whole, "--steps", "3", "--checkpoint-every", "3", "--out", "part").code == 0
    )
    assert cli("run", TINY, "--resume", "part", "--strategy", "dp", "--workers", "3", "--steps", "6").code == 0
    assert result(tmp_path / "part")["digest"] == result(tmp_path / "whole")["digest"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "pretend:9"], "this machine has 4 of them, pretend:0 to pretend:3"),
        (["--device", "pretend:1", "--workers", "2"], "is one device, and there are 2 workers"),
        (["--device", "cuda"], "the accelerator of this machine is pretend"),
        (["--device", "cudo"], "torch knows no such device"),
        (["--device", "pretend:x"], "torch knows no such device"),
        (["--workers", "5"], "5 workers on this host, but only 4 accelerators"),
        (["--strategy", "dp", "--workers", "5"], "needs a device for each of its 5 workers, and there are 4"),
        (["--strategy", "dp", "--workers", "3", "--device", "pretend:2"], "there are 2 from pretend:2 on"),
    ],
)
def test_devices_that_are_not_there_are_refused(
    arguments: list[str], said: str, cli: CommandLine, tmp_path: Path
) -> None:
    done = cli("run", TINY, "--lanes", "6", "--threads", "1", "--out", "out", *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("lockstep:") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("too_large", "lockstep fit"),
        ("lost", "device 1 is lost"),
        ("elsewhere", "Expected all tensors to be on the same device"),
        ("no_kernel", "no_kernel_for::it"),
        ("no_such_precision", "target dtype is not supported"),
        ("not_deterministic", "--inexact"),
    ],
)
def test_what_goes_wrong_on_a_device_is_one_report(function: str, said: str, cli: CommandLine) -> None:
    done = cli("run", f"{ON_DEVICE}:{function}", "--strategy", "ddp", "--workers", "2", *SHORT, "--out", "out")
    assert done.code == 1, done.text
    assert said in done.err
    assert done.err.count("Traceback") <= 1


def test_each_worker_takes_the_one_device_that_it_sees(cli: CommandLine, tmp_path: Path) -> None:
    """As under `srun --gpus-per-task=1`; two that see the same one are refused."""
    from lockstep.errors import BadInput
    from lockstep.world.place import Place
    from lockstep.world.worker_device import choose_device

    place = Place(launcher="srun", rank=1, size=2, local_rank=1, local_size=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.accelerator.device_count", lambda: 1)
        with pytest.raises(BadInput, match="2 workers on this host, but only 1 accelerator"):
            choose_device("auto", place, own=True)
        patch.setenv("CUDA_VISIBLE_DEVICES", "MIG-0a1b")
        assert choose_device("auto", place, own=True) == "pretend:0"
        with pytest.raises(BadInput, match="CUDA_VISIBLE_DEVICES=MIG-0a1b"):
            choose_device("auto", place)


def test_doctor(cli: CommandLine) -> None:
    assert json.loads(cli("doctor", "--device", "pretend:1", "--json").out)["device"] == "pretend:1"
    assert cli("doctor", "--device", "cuda").code == 2
