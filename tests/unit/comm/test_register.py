"""`shm` is known to torch after `import lockstep`, in either order, and lockstep alone imports no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports", ["import torch, lockstep", "import lockstep, torch", "import lockstep, torch.distributed"]
)
def test_both_orders_register(imports: str) -> None:
    check = "import torch.distributed as d; print(d.Backend.backend_capability['shm'], d.Backend('shm'))"
    assert _run(f"{imports}\n{check}") == "['cpu'] shm"


def test_lockstep_alone_imports_no_torch() -> None:
    assert _run("import lockstep, sys; print('torch' in sys.modules)") == "False"


def test_a_forgotten_import_changes_nothing() -> None:
    watching = "any(type(f).__module__ == 'lockstep.comm.register' for f in sys.meta_path)"
    assert _run(f"import sys, lockstep, torch; print({watching})") == "False"
