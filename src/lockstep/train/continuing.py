"""A run that is begun, or goes on where it is there already: `--continue`, a restart by torchrun, a requeued job.

in the folder                       what is done
nothing                             the run begins
a result                            nothing: it is complete
a checkpoint                        it goes on from the last good one
records without a checkpoint        they are put aside, and it begins anew
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput
from lockstep.train.checkpoint_folder import kept
from lockstep.train.folder_lock import holding
from lockstep.train.resume import attempts, put_aside, read_standing, resumed_spec
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Done, read_result
from lockstep.train.schema.run_json import NAME

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec


def complete(folder: Path) -> bool:
    """Say whether the run in a folder has ended well."""
    return (folder / RESULT).is_file() and isinstance(read_result(folder), Done)


def ready_to_go_on(spec: RunSpec, folder: Path, given: Mapping[str, Any]) -> RunSpec:
    """Return the settings to begin or go on with; make room where there is nothing to go on from."""
    if not folder.is_dir():
        return spec
    if kept(folder):
        return resumed_spec(read_standing(folder), given)
    if (folder / NAME).is_file():
        with holding(folder):
            put_aside(folder)
            (folder / NAME).unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
    elif not attempts(folder):
        raise BadInput(f"{folder} is no run folder, and is not empty: choose another --out")
    return spec
