"""Where TensorFlow is: in this Python, or in an environment of its own, with the same Lockstep and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lockstep.errors import BadInput

VARIABLE = "LOCKSTEP_TENSORFLOW_PYTHON"
FOLDER = ".venv-tensorflow"
INSTALL = (
    "run `make tensorflow` in a checkout of Lockstep, or pip install 'lockstep-train[tensorflow]', or set "
    f"{VARIABLE} to the Python of an environment that has TensorFlow and Lockstep"
)
PROBE = """
import importlib.util, json, sys
from importlib.metadata import PackageNotFoundError, version
def found(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
facts = {"lockstep": "", "tensorflow": "", "keras": found("keras")}
if importlib.util.find_spec("tensorflow") is not None:
    facts["tensorflow"] = found("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly") or "of unknown version"
try:
    import lockstep.tensorflow.script_rank
    facts["lockstep"] = lockstep.__version__
except Exception as error:
    facts["problem"] = f"{type(error).__name__}: {error}"
print(json.dumps(facts))
"""


@dataclass(frozen=True, kw_only=True)
class TensorFlowEnvironment:
    """A Python that has TensorFlow and Lockstep."""

    python: str
    """Its path."""
    tensorflow: str
    """The version of TensorFlow."""
    keras: str | None
    """The version of Keras."""


def find_environment() -> TensorFlowEnvironment:
    """Return the Python that TensorFlow's ranks run with; raise with what to install if there is none."""
    python = _python()
    if python is None:
        raise BadInput(f"TensorFlow is not installed: {INSTALL}")
    environment = _examined(python)
    if isinstance(environment, str):
        raise BadInput(environment)
    return environment


def why_not() -> str | None:
    """Return why there is no such Python, or None."""
    try:
        find_environment()
    except BadInput as error:
        return str(error)
    return None


def _python() -> str | None:
    """Return the Python that was named, or this one, or that of the folder that `make tensorflow` makes."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return named
    if find_spec("tensorflow") is not None:
        return sys.executable
    checkout = Path(__file__).parents[3]
    for folder in (Path.cwd(), checkout):
        path = folder / FOLDER / "bin" / "python"
        if path.is_file():
            return str(path)
    return None


@cache
def _examined(python: str) -> TensorFlowEnvironment | str:
    """Look into a Python, without importing TensorFlow, which takes seconds; return what is wrong, if anything."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the Python for TensorFlow, {python}, cannot be started ({error}): {INSTALL}"
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        return f"the Python for TensorFlow, {python}, is of no use here ({last}): {INSTALL}"
    if not facts["tensorflow"]:
        return f"TensorFlow is not installed for {python}: {INSTALL}"
    if not facts["lockstep"]:
        return f"Lockstep cannot be imported by {python}, which has TensorFlow ({facts['problem']}): {INSTALL}"
    return TensorFlowEnvironment(python=python, tensorflow=facts["tensorflow"], keras=facts["keras"])
