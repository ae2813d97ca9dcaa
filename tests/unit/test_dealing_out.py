"""Which tests run in one process: by file, but for those that share nothing."""

from __future__ import annotations

from pathlib import Path

from tests.dealing_out import APART, TOGETHER, together

TESTS = Path(__file__).parents[1]


def test_a_files_tests_stay_together() -> None:
    name = "tests/contract/test_bits.py::test_threads[bytes-2]"
    assert together(name) == "tests/contract/test_bits.py"
    assert together("tests/system/test_notebook.py::test_a[x::y]") == "tests/system/test_notebook.py"


def test_those_that_share_nothing_do_not() -> None:
    for name in ("tests/multiprocess/test_ends.py::test_a", "tests/system/test_hosts.py::test_b[2+2]"):
        assert together(name) == name


def test_every_file_that_is_named_is_there() -> None:
    there = {path.name for path in TESTS.rglob("test_*.py")}
    assert there >= APART
    assert {path.name for path in (TESTS / "system").iterdir()} >= TOGETHER
