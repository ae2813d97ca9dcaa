"""The plain model's weights out of a run folder: its final weights, or else those of its last good checkpoint.

No torch is needed here: tensors go from file to file, a block at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.errors import BadInput
from lockstep.train.checkpoint_file import stored_name
from lockstep.train.checkpoint_folder import kept, last_good
from lockstep.train.checkpoint_header import read_header
from lockstep.train.records import CannotWrite
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Done, read_result
from lockstep.train.tensor_file import Damaged, TensorFile
from lockstep.train.weights import KIND, NAME, WeightsDraft

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
"""What files that torch.save writes are called."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and from what."""

    out: str
    """The file that was written."""
    source: str
    """The file that the weights came from."""
    step: int
    """After how many steps."""
    finished: bool
    """Whether these are the weights after the last step of a run that finished."""
    tensors: int
    """How many names there are in the file."""
    bytes: int
    """Its length."""
    warnings: tuple[str, ...] = ()
    """Checkpoints that are damaged and were passed over."""


class OpenWeights(NamedTuple):
    """An open file with weights."""

    file: TensorFile
    about: dict[str, Any]
    """What the weights file will say of itself: the recipe, the step, ..."""
    names: dict[str, str]
    """The names of the plain model's `state_dict`, and of the file's tensors."""
    finished: bool
    warnings: tuple[str, ...]


class ExportDraft(WeightsDraft):
    """A weights file outside a run folder."""

    def cannot_write(self, error: OSError) -> CannotWrite:
        """Return the error for a file that the system would not let us write."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "make room, or choose another path" if full else "choose another path"
        return CannotWrite(f"cannot write {self.path}: {error.strerror or error}. Nothing was changed: {advice}")


def export(folder: Path, out: Path, *, force: bool = False) -> Exported:
    """Write the weights of a run to a file, whole or not at all; `force` replaces a file that exists."""
    _check_run(folder)
    _check_out(out, force)
    source = _open(folder)
    with source.file as file:
        table = [(one.name, one.dtype, one.shape) for one in file.tensors.values()]
        draft = ExportDraft(out, source.about, source.names, table)
        try:
            for name in dict.fromkeys(source.names.values()):
                for block in file.blocks(name):
                    draft.add(name, block)
            draft.finish()
        finally:
            draft.drop()
    return Exported(
        out=str(out),
        source=str(file.path),
        step=source.about["step"],
        finished=source.finished,
        tensors=len(source.names),
        bytes=draft.nbytes,
        warnings=source.warnings,
    )


def _check_run(folder: Path) -> None:
    if (folder / "plan.json").is_file() and not (folder / "run.json").is_file():
        runs = sorted(path.parent.name for path in folder.glob("*/run.json"))
        raise BadInput(f"{folder} is a comparison: give one of its runs, {', '.join(runs) or 'of which it has none'}")
    if not (folder / "run.json").is_file():
        raise BadInput(f"{folder} is no run folder: there is no run.json in it. Give the --out of `lockstep run`")


def _check_out(out: Path, force: bool) -> None:
    if out.is_dir():
        raise BadInput(f"{out} is a folder: give the name of a file, such as {out / 'model.safetensors'}")
    if out.exists() and not force:
        raise BadInput(f"{out} exists already: give --force to replace it, or another path")
    if not out.absolute().parent.is_dir():
        raise BadInput(f"the folder {out.parent} does not exist: make it, or give another path")
    if out.suffix in PICKLED:
        raise BadInput(
            f"{out} would be a safetensors file, which torch.load does not read: name it "
            f"{out.with_suffix('.safetensors')}, and load it by safetensors.torch.load_file"
        )


def _open(folder: Path) -> OpenWeights:
    final = folder / NAME
    if final.exists():
        try:
            return _from_final(TensorFile(final, KIND))
        except Damaged as error:
            raise BadInput(f"{error}. To take the last checkpoint instead, remove it") from error
    if not kept(folder):
        raise BadInput(f"{folder} has no weights: {_why_none(folder)}")
    saved, damaged = last_good(folder)
    header = read_header(saved.header, str(saved.path))
    stored = {stored_name(name): name for name in saved.tensors}
    names = {plain: stored.get(name, "") for plain, name in header.weights.items()}
    about = {"recipe": header.arithmetic.recipe, "step": header.step}
    warnings = tuple(f"{text}. Took {saved.path.name}" for text in damaged)
    return OpenWeights(_checked(saved, names), about, names, finished=False, warnings=warnings)


def _from_final(file: TensorFile) -> OpenWeights:
    about = dict(file.content)
    tied = about.pop("tied", {})
    names = {name: tied.get(name, name) for name in file.tensors} if isinstance(tied, dict) else {}
    if type(about.get("step")) is not int or not names:
        file.close()
        raise Damaged(f"{file.path} has a header that cannot be read: it does not say of which step it is")
    return OpenWeights(_checked(file, names), about, names, finished=True, warnings=())


def _checked(file: TensorFile, names: Mapping[str, str]) -> TensorFile:
    missing = [plain for plain, name in names.items() if name not in file.tensors]
    if missing:
        file.close()
        raise Damaged(f"{file.path} has no tensor for {missing[0]}, which its header names")
    return file


def _why_none(folder: Path) -> str:
    if older := sorted(path.name for path in folder.glob("*.ls")):
        return f"an older version of Lockstep wrote {older[-1]}, which this one does not read. Run it again"
    if (folder / RESULT).is_file() and isinstance(read_result(folder), Done):
        return "a comparison keeps those of a way's first repeat, up to 64 MiB. Run it with `lockstep run`"
    return "the run did not finish, and wrote no checkpoint. Run it with --checkpoint-every N"
