"""A Jupyter kernel for the present environment, with the module lines of a site loaded first: what JupyterHub starts.

    kernels/NAME/kernel.json    what Jupyter starts: this Python, or `start` if there are module lines
                 start          a login shell loads the modules, then becomes this Python

A kernel that would not start is not written: `check` runs the same lines once, with an import in place of the kernel.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.version import __version__

OURS = "lockstep"
"""The entry of a kernel's metadata that says who made it."""
NEEDS = "pip install 'lockstep-train[notebook]'"
CHECK = "import ipykernel, lockstep.notebook"
CHECK_SECONDS = 120
NO_MODULES = (
    'type module > /dev/null 2>&1 || { echo "this host has no command module: it is not of the site" >&2; exit 1; }'
)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel to be registered."""

    name: str
    """Of its folder, and for `jupyter kernelspec`."""
    title: str
    """As the launcher of JupyterLab shows it."""
    python: str = sys.executable
    """The Python that it runs."""
    modules: Sequence[str] = ()
    """Module lines, in order."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the kernel and its workers."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", self.name):
            raise BadInput(f"--name {self.name!r:.80}: use small letters, digits, dots, - and _, e.g. --name lockstep")

    def files(self) -> dict[str, str]:
        """Return the files of the kernel's folder by name."""
        command = [self.python, "-m", "ipykernel_launcher"]
        about = {
            "argv": [*(["{resource_dir}/start"] if self.modules else command), "-f", "{connection_file}"],
            "display_name": self.title,
            "language": "python",
            "env": dict(self.variables),
            "metadata": {"debugger": True, OURS: __version__},
        }
        files = {"kernel.json": json.dumps(about, indent=1) + "\n"}
        if self.modules:
            files["start"] = self.script(command)
        return files

    def script(self, command: Sequence[str]) -> str:
        """Return the shell script that loads the modules and becomes a command, with the arguments it is given."""
        lines = ["#!/bin/bash -l", "# Made by `lockstep notebook kernel`.", NO_MODULES, "set -e", *self.modules]
        return "\n".join([*lines, f'exec {shlex.join(command)} "$@"', ""])


def check(kernel: Kernel) -> None:
    """Refuse a kernel that would not start here."""
    if importlib.util.find_spec("ipykernel") is None:
        raise BadInput(f"{kernel.python} has no ipykernel, which every Python kernel is started by: {NEEDS}")
    if not kernel.modules:
        return
    try:
        script = kernel.script([kernel.python, "-c", CHECK])
        done = subprocess.run(
            ["bash", "-l", "-c", script],
            env={**os.environ, **kernel.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInput(f"the kernel did not start within {CHECK_SECONDS} s; nothing was written") from None
    if done.returncode:
        why = "\n  ".join(done.stderr.strip().splitlines()[-3:]) or f"exit code {done.returncode}"
        raise BadInput(
            f"with the module lines of the profile this kernel would not start, so nothing was written:\n  {why}\n"
            "Type the command on a host of that site, in an environment made with these modules; --dry-run shows the "
            "files anywhere"
        )


def folder_of(name: str) -> Path:
    """Return the folder of a kernel of this user."""
    try:
        from jupyter_core.paths import jupyter_data_dir
    except ImportError:
        raise BadInput(f"{sys.executable} has no jupyter_core, which knows where kernels are: {NEEDS}") from None
    return Path(jupyter_data_dir()) / "kernels" / name


def register(kernel: Kernel) -> Path:
    """Write a kernel for this user, whole or not at all; one that this command made before is replaced."""
    folder = folder_of(kernel.name)
    if folder.exists() and not _ours(folder):
        raise BadInput(f"{folder} is a kernel that something else made: choose another --name, or remove it")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{kernel.name}-", dir=folder.parent) as place:
            draft = Path(place) / kernel.name
            draft.mkdir(mode=0o755)
            for name, text in kernel.files().items():
                (draft / name).write_text(text, encoding="utf-8")
                (draft / name).chmod(0o755 if name == "start" else 0o644)
            if folder.exists():
                shutil.rmtree(folder)
            draft.rename(folder)
    except OSError as error:
        raise BadInput(f"cannot write the kernel {folder}: {error.strerror}; JUPYTER_DATA_DIR names another") from error
    return folder


def _ours(folder: Path) -> bool:
    try:
        about = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and OURS in (about.get("metadata") or {})
