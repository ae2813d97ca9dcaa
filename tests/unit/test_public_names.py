"""What is public of the package."""

from __future__ import annotations

import subprocess
import sys

import lockstep


def test_dir_lists_what_is_public_and_nothing_else() -> None:
    assert dir(lockstep) == sorted(lockstep.__all__)
    assert all(hasattr(lockstep, name) for name in dir(lockstep))


def test_listing_imports_no_torch() -> None:
    check = "import lockstep, sys; dir(lockstep); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
