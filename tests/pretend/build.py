"""Builds the pretend devices, once for each torch and each state of their sources; prints the folder for PYTHONPATH.

PYTHONPATH=$(python -m tests.pretend.build) python -c "import torch; print(torch.ones(2, device='pretend'))"
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".pretend"
KEPT = ("csrc/*", "pretend_device/*.py", "setup.py", "pyproject.toml")


def build() -> Path:
    """Return the folder of the build that belongs to this torch and these sources; make it if there is none."""
    sources = sorted(path for pattern in KEPT for path in HERE.glob(pattern))
    said = [f"{path.name}\n".encode() + path.read_bytes() for path in sources]
    key = hashlib.sha256(b"".join([sys.version.encode(), *said])).hexdigest()[:12]
    folder = CACHE / f"torch-{version('torch')}-{key}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(sources, folder)
    return folder


def _install(sources: list[Path], folder: Path) -> None:
    copy, part = folder.with_suffix(".sources"), folder.with_suffix(".part")
    for old in (copy, part):
        shutil.rmtree(old, ignore_errors=True)
    for path in sources:
        to = copy / path.relative_to(HERE)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    flags = ["--quiet", "--no-build-isolation", "--no-deps", "--disable-pip-version-check", "--root-user-action=ignore"]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, "--target", str(part), str(copy)], check=True)
    shutil.rmtree(copy)
    part.rename(folder)


if __name__ == "__main__":
    print(build())
