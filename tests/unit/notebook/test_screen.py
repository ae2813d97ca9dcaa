"""What a cell shows: escaped, and without IPython plain text; how the starter's environment is made."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.launch.rank_output import FOLDER
from lockstep.notebook.conversation import environment, interrupts_wait
from lockstep.notebook.report_frame import TEXT, framed, table, write_table
from lockstep.notebook.screen import Screen, this_screen
from lockstep.report.page import page
from tests.unit.report.made_up import HOSTILE, example


def test_without_a_kernel_it_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    screen = this_screen()
    assert type(screen) is Screen
    screen.show("as text", "<p>as HTML</p>")
    with screen.status() as status:
        status.say("at work")
    assert capsys.readouterr() == ("as text", "at work\n")


def test_names_from_a_run_are_text_in_table_and_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = example(HOSTILE)
    (tmp_path / "report.html").write_text(page(comparison), encoding="utf-8")
    monkeypatch.setenv("FORCE_COLOR", "1")  # ipykernel sets it, for cells
    write_table(comparison, tmp_path)
    assert "\x1b" not in (tmp_path / TEXT).read_text(encoding="utf-8")
    shown = framed(tmp_path, tmp_path / "report.html")
    assert "<script" not in shown  # neither from a name nor from the page: that is in an attribute
    assert shown.count("<iframe") == 1
    assert 'sandbox="allow-scripts"' in shown
    assert "<tr>" in table(comparison)
    (srcdoc,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert srcdoc.lower().startswith("&lt;!doctype html&gt;")


def test_the_starter_finds_what_the_kernel_finds(tmp_path: Path) -> None:
    site = next(entry for entry in sys.path if "site-packages" in entry)
    env = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "HOME": "/h", "PYTHONPATH": "gone"}
    made = environment(env, ["", str(tmp_path), site], "private")
    assert made["PYTHONPATH"].split(os.pathsep) == [str(Path().absolute()), str(tmp_path)]
    assert (made["MPLBACKEND"], made["HOME"], made[FOLDER]) == ("agg", "/h", "private")
    assert environment({"MPLBACKEND": "svg"}, [], "x")["MPLBACKEND"] == "svg"


def test_an_interrupt_waits_until_there_is_something_to_end() -> None:
    import signal

    reached, before = [], signal.getsignal(signal.SIGINT)

    def start() -> None:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_notebook_shows_the_readers_own_lines_and_the_message() -> None:
    try:
        raise BadInput("say it so")
    except BadInput as error:
        (text,) = error._render_traceback_()
    assert text.endswith("BadInput: say it so")
    assert Path(__file__).name in text
