"""Whether a script calls Keras 3's `fit`, which does not work with MultiWorkerMirroredStrategy; read, not run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LEGACY = "TF_USE_LEGACY_KERAS"
STRATEGY = "MultiWorkerMirroredStrategy"


def fit_lines(source: str) -> list[int]:
    """Return the lines that call some `.fit(...)`, in a script that has Keras and the strategy in it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []  # Python itself will say so
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {part for alias in node.names for part in alias.name.split(".")}
            names |= set((getattr(node, "module", None) or "").split("."))
    legacy = any(isinstance(node, ast.Constant) and node.value == LEGACY for node in ast.walk(tree))
    if legacy or "tf_keras" in names or not {"keras", STRATEGY} <= names:
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sorted(node.lineno for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "fit")


def warning_for(script: Path, keras: str | None, env: Mapping[str, str]) -> str | None:
    """Return what to say of a script before it runs on several workers; None if there is nothing to say."""
    if keras is None or not keras.startswith("3.") or env.get(LEGACY, "").lower() in ("1", "true"):
        return None
    try:
        lines = fit_lines(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    if not lines:
        return None
    return (
        f"{script}, line {lines[0]}, calls .fit(): that of Keras {keras} does not work with {STRATEGY} on several "
        "workers (keras#20585). Write the loop with strategy.run, as in `lockstep docs tensorflow`, or install "
        f"tf_keras and set {LEGACY}=1"
    )


def keras_version() -> str | None:
    """Return the version of Keras that is installed for this Python."""
    try:
        return version("keras")
    except PackageNotFoundError:
        return None
