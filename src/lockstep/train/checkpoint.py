"""Saving and loading a trainer: the plain state, whichever strategy runs, through rank 0.

save    1 rank 0 writes the header; nothing has to be gathered to know what will follow
2 all ranks go through the state, a window at a time, and rank 0 writes each as it comes
3 rank 0 puts the file in place and tells how that went; nobody trains on before

load    1 rank 0 checks the file and tells the header, or why not
2 all ranks check it against what they have; nothing is changed yet
3 rank 0 reads tensor by tensor, and every rank takes what it keeps of each
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.comm.broadcast import broadcast_tensor, broadcast_text
from lockstep.errors import BadInput, LockstepError
from lockstep.train.checkpoint_file import Draft, Place, Saved, lay_out
from lockstep.train.checkpoint_header import Arithmetic, Header, Writer, differences, read_header, refuse_other
from lockstep.train.optimizer_settings import apply_settings, check_settings, settings_of
from lockstep.train.records import CannotWrite
from lockstep.train.spec import versions

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.train.trainer import Trainer


def save(trainer: Trainer, path: Path, arithmetic: Arithmetic) -> None:
    """Write a checkpoint, whole or not at all; all workers call this together, and return when it is in place."""
    strategy, world = trainer.strategy, trainer.world
    draft: Draft | None = None
    refused: LockstepError | None = None
    try:
        if world.rank == 0:
            try:
                draft = _begin(trainer, path, arithmetic)
            except LockstepError as error:
                refused = error
        for name, tensor in strategy.stream():  # to its end even after a failure: the others are in it too
            if draft is not None and refused is None:
                refused = _tried(partial(draft.add, name, as_bytes(tensor)))
        if draft is not None and refused is None:
            refused = _tried(draft.finish)
    finally:
        if draft is not None:
            draft.drop()
    told = str(refused or "")
    if world.size > 1:
        told = broadcast_text(told, world.device)
    if told:
        raise refused or CannotWrite(told)


def load(trainer: Trainer, open_file: Callable[[], Saved], arithmetic: Arithmetic) -> tuple[Header, list[str]]:
    """Take over a checkpoint; all workers call this together, and only rank 0 opens the file.

    Returns its header, and what may make other bits than an unbroken run's.
    """
    saved, where, header, places = _agree(trainer, open_file)
    try:
        refuse_other(header.arithmetic, arithmetic, where)
        _check_tensors(trainer, places, where)
        for tuned in trainer.strategy.tuned():
            check_settings(header.settings, tuned, where)
        trainer.strategy.load(_pieces(trainer, saved, places))
        for tuned in trainer.strategy.tuned():
            apply_settings(header.settings, tuned)
    finally:
        if saved is not None:
            saved.close()
    here = writer_of(trainer)
    return header, differences(header.writer, here, header.arithmetic)


def writer_of(trainer: Trainer) -> Writer:
    """Return who would write a checkpoint now."""
    return Writer(
        strategy=trainer.strategy.name,
        workers=trainer.strategy.training.workers,
        device=trainer.world.device.partition(":")[0],
        versions=versions(),
        time=time.time(),
    )


def as_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes; nothing is copied where it lies on the CPU in one piece."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _begin(trainer: Trainer, path: Path, arithmetic: Arithmetic) -> Draft:
    header = Header(
        step=trainer.steps,
        epoch=trainer.epoch,
        epoch_step=trainer.epoch_step,
        arithmetic=arithmetic,
        writer=writer_of(trainer),
        settings=settings_of(trainer.strategy.tuned()[0]),
    )
    table = [(e.name, str(e.dtype).removeprefix("torch."), e.shape) for e in trainer.strategy.table()]
    return Draft(path, header.as_json(), lay_out(table))


def _tried(work: Callable[[], None]) -> CannotWrite | None:
    try:
        work()
    except CannotWrite as error:
        return error
    return None


def _agree(trainer: Trainer, open_file: Callable[[], Saved]) -> tuple[Saved | None, str, Header, list[Place]]:
    """Step 1: every rank gets the header, or raises what rank 0 found wrong."""
    world = trainer.world
    saved, text = None, ""
    if world.rank == 0:
        try:
            saved = open_file()
        except BadInput as error:
            text = json.dumps({"refused": str(error)})
        else:
            table = [[place.name, place.dtype, place.shape, place.start] for place in saved.places]
            text = json.dumps({"where": str(saved.path), "header": saved.header, "places": table})
    told = json.loads(broadcast_text(text, world.device) if world.size > 1 else text)
    if "refused" in told:
        raise BadInput(told["refused"])
    places = [Place(name, dtype, tuple(shape), start) for name, dtype, shape, start in told["places"]]
    return saved, told["where"], read_header(told["header"], told["where"]), places


def _check_tensors(trainer: Trainer, places: list[Place], where: str) -> None:
    """Step 2: the same parameters and buffers, and optimizer state of parameters that are trained here."""
    model = trainer.model
    here: dict[str, Tensor] = {f"parameter/{name}": p for name, p in model.named_parameters()}
    here |= {f"buffer/{name}": b for name, b in model.named_buffers()}
    mine = {name: f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for name, t in here.items()}
    theirs = {p.name: f"{p.dtype} {p.shape}" for p in places if not p.name.startswith("optimizer/")}
    for name in (*theirs, *mine):
        if theirs.get(name) != mine.get(name):
            shown = name.replace("/", " ", 1)
            raise BadInput(
                f"{where} is of another model: {shown} is {theirs.get(name, 'not in it')} there, and "
                f"{mine.get(name, 'absent')} here. Use the model that it was written with"
            )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    held: dict[str, dict[str, tuple[int, ...]]] = {}
    for place in places:
        if place.name.startswith("optimizer/"):
            owner, _, key = place.name.removeprefix("optimizer/").rpartition("/")
            held.setdefault(key, {})[owner] = place.shape
            if owner not in trained:
                raise BadInput(f"{where} has optimizer state of {owner}, which is not trained here: freeze it in both")
    trainer.strategy.check_state(held, where)


def _pieces(trainer: Trainer, saved: Saved | None, places: list[Place]) -> Iterator[tuple[str, Tensor]]:
    """Step 3: yield every tensor on every rank; rank 0 reads it."""
    for place in places:
        dtype: torch.dtype = getattr(torch, place.dtype)
        value = torch.empty(place.shape, dtype=dtype)
        if saved is not None and value.numel():
            value = torch.frombuffer(saved.read(place), dtype=dtype).reshape(place.shape)
        if trainer.world.size > 1:
            value = broadcast_tensor(value, trainer.world.device)
        yield place.name, value
