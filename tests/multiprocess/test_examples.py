"""The examples run, and the drop-ins compute what the stock script computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import CommandLine

EXAMPLES = Path(__file__).parents[2] / "examples"
DROP_INS = sorted(path.name for path in (EXAMPLES / "drop_in").glob("*.py"))


def test_the_drop_ins_compute_what_the_stock_script_computes(cli: CommandLine) -> None:
    printed = {}
    for name in DROP_INS:
        done = cli.apart("launch", "--workers", "2", str(EXAMPLES / "drop_in" / name))
        assert done.code == 0, done.text
        printed[name] = done.out
    losses = {name: float(text.split()[1]) for name, text in printed.items()}
    assert set(printed) == {"before.py", *(f"after_{kind}.py" for kind in ("ddp", "shm", "sync_batchnorm", "ragged"))}
    before = losses.pop("before.py")
    synced = losses.pop("after_sync_batchnorm.py")
    assert synced == pytest.approx(before, abs=0.2), "statistics over both ranks are near those of one"
    assert all(loss == pytest.approx(before, abs=2e-3) for loss in losses.values()), (before, losses)


def test_a_transformers_model_is_a_recipe(cli: CommandLine, tmp_path: Path) -> None:
    """GPT-2 with dropout, tied weights and padded sequences: the same bits on one worker, on two, and cut in two."""
    recipe = str(EXAMPLES / "transformers_recipe.py")
    digests = set()
    for number, way in enumerate((["--workers", "1"], ["--workers", "2"])):
        done = cli("run", recipe, *way, "--steps", "2", "--json", "--out", f"run-{number}")
        assert done.code == 0, done.text
        digests.add(json.loads(done.out)["result"]["digest"])
    assert len(digests) == 1
