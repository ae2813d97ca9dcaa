"""What lockstep changes for a whole process is listed in the docs, and each effect can be left out by its name."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import process_wide
from lockstep.errors import BadInput
from lockstep.process_wide import EFFECTS, VARIABLE
from tests.commands import CommandLine

DOCS = Path(__file__).parents[2] / "docs" / "process-wide.md"


def run(code: str, leave: str = "", **variables: str) -> str:
    """Run code in a fresh process that is to leave some effects out, and return what it prints."""
    env = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "GLOO_SOCKET_IFNAME")}
    env = {**env, VARIABLE: leave, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_docs_list_them() -> None:
    table = DOCS.read_text().split("<!-- effects -->")[1].split("<!-- /effects -->")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.M)) == EFFECTS


@pytest.mark.parametrize("text", ["mallocs", "malloc,interfaces"])
def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(BadInput, match=f"{VARIABLE}={text.split(',')[-1]}: expected names among shm, threads"):
        process_wide.check()


def test_several_names_with_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "malloc, threads")
    process_wide.check()
    assert [name for name in EFFECTS if process_wide.leave(name)] == ["threads", "malloc"]


def test_the_command_line_refuses_it_in_one_line(cli: CommandLine) -> None:
    done = cli.apart("doctor", env={VARIABLE: "heap"})
    assert done.code == 2
    assert done.err.startswith(f"lockstep: {VARIABLE}=heap")
    assert done.err.count("\n") == 1


@pytest.mark.thinned("leave", 2)
@pytest.mark.parametrize("imports", ["import torch.distributed, lockstep", "import lockstep, torch.distributed"])
@pytest.mark.parametrize(("leave", "known"), [("", "True False"), ("shm", "False False")])
def test_shm(imports: str, leave: str, known: str) -> None:
    hook = "any(type(f).__module__ == 'lockstep.comm.register' for f in sys.meta_path)"
    check = f"import sys\nprint(hasattr(torch.distributed.Backend, 'SHM'), {hook})"
    assert run(f"{imports}\n{check}", leave) == known


def test_shm_leaves_no_hook_before_torch_is_loaded() -> None:
    hook = "import sys, lockstep; print(any(type(f).__module__ == 'lockstep.comm.register' for f in sys.meta_path))"
    assert [run(hook), run(hook, "shm")] == ["True", "False"]


def test_shm_cannot_be_both_left_out_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.world.join import join
    from lockstep.world.place import Place

    monkeypatch.setenv(VARIABLE, "shm")
    with pytest.raises(BadInput, match="backend shm is not registered, because LOCKSTEP_LEAVE names it"):
        join(backend="shm", place=Place(launcher="inline"))


@pytest.mark.parametrize(("leave", "threads"), [("", "1 1"), ("threads", "3 3")])
def test_threads(leave: str, threads: str) -> None:
    code = "import torch, lockstep\ntorch.set_num_threads(3)\nwith lockstep.join(device='cpu') as world:\n"
    assert run(f"{code}    print(torch.get_num_threads(), world.threads)", leave) == threads


def test_threads_that_are_given_are_set() -> None:
    code = "import torch, lockstep\nwith lockstep.join(device='cpu', threads=2) as world:\n"
    assert run(f"{code}    print(torch.get_num_threads(), world.threads)", "threads") == "2 2"


@pytest.mark.parametrize(("leave", "name"), [("", "lo"), ("interface", "None")])
def test_interface(leave: str, name: str, tmp_path: Path) -> None:
    code = f"""
import os, lockstep, torch.distributed as dist
from lockstep.world.join import _build_group
from lockstep.world.place import Place
store = dist.FileStore({str(tmp_path / "store")!r}, 1)
_build_group(store, Place(launcher="manual"), "cpu", "gloo", "127.0.0.1")
print(os.environ.get("GLOO_SOCKET_IFNAME"))
dist.destroy_process_group()
"""
    assert run(code, leave).splitlines()[-1] == name  # gloo of torch 2.8 prints a line of its own before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the allocator is not glibc's")
@pytest.mark.parametrize(("leave", "done"), [("", "True"), ("malloc", "False")])
def test_malloc(leave: str, done: str) -> None:
    assert run("from lockstep.train.malloc import keep_freed_memory as keep; print(keep())", leave) == done
