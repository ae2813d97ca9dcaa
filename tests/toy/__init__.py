"""A package of somebody else, with a strategy, a launcher and a peer of its own; `install` puts it on a path."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

ENTRY_POINTS = {
    "lockstep.strategies": {"toy": "lockstep_toy:STRATEGY"},
    "lockstep.launchers": {"toy": "lockstep_toy:LAUNCHER"},
    "lockstep.peers": {"toy-peer": "lockstep_toy:PEER"},
}


def install(site: Path) -> dict[str, str]:
    """Install the toy package into a folder, and return the environment that finds it there."""
    shutil.copytree(Path(__file__).parent / "lockstep_toy", site / "lockstep_toy")
    write_metadata(site, "lockstep-toy", ENTRY_POINTS)
    return {"PYTHONPATH": str(site)}


def write_metadata(site: Path, package: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Write what pip leaves of a package beside its modules: its name and its entry points."""
    folder = site / f"{package.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [line for group, own in points.items() for line in (f"[{group}]", *map(" = ".join, own.items()))]
    (folder / "entry_points.txt").write_text("\n".join(lines))
