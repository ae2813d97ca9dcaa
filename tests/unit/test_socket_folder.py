"""The folder of multiprocessing's sockets: short, private, and gone however its process ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lockstep.launch.socket_folder import MOST_CHARACTERS, short_folder

SERVER = "import lockstep.launch.socket_folder, os; print(os.environ.get('LOCKSTEP_SOCKETS'))"
MAKES = "from lockstep.launch.socket_folder import socket_folder; import os; print(socket_folder(), flush=True); {end}"


def test_a_long_folder_is_replaced_by_a_short_one() -> None:
    assert short_folder("/scratch") == "/scratch"
    assert len(short_folder("/x" * 63)) <= MOST_CHARACTERS


@pytest.mark.parametrize("length", [0, 125])
def test_it_is_private_and_removed(tmp_path: Path, length: int) -> None:
    folder = tmp_path / "x".ljust(length - len(str(tmp_path)) - 1, "x")
    folder.mkdir()
    code = MAKES.format(end="print(oct(os.stat(socket_folder()).st_mode))")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    made, mode = done.stdout.split()
    assert len(made) < 90
    assert stat.S_IMODE(int(mode, 8)) == 0o700
    assert not Path(made).exists()
    assert not list(folder.iterdir())


def test_the_server_removes_it_for_a_command_that_was_killed() -> None:
    folder = tempfile.mkdtemp()
    env = {**os.environ, "LOCKSTEP_SOCKETS": folder}
    done = subprocess.run([sys.executable, "-c", SERVER], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n", "what the server forks has other folders"
    assert not Path(folder).exists()
