"""What `pip install .` gives: the package with the files that it reads, and the documentation."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_every_file_of_the_package_and_the_pages(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = tmp_path.glob("lockstep_train-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", "src", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    package = {path.removeprefix("src/") for path in listed.stdout.split() if path.startswith("src/")}
    pages = {f"lockstep/pages/{path.removeprefix('docs/')}" for path in listed.stdout.split() if path.endswith(".md")}
    assert package | pages <= names
