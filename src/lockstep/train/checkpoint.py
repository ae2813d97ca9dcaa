"""Saving and loading a trainer: the plain state, whichever strategy runs, through rank 0.

save    1  all ranks agree on what the state consists of and who holds what of it
        2  its holders send it and rank 0 writes it, see streamed_file.py; nobody trains on before it is in place

load    1  rank 0 checks the file and broadcasts the header, or why not
        2  all ranks check it against what they have; what is refused is refused here, and nothing is changed
        3  the settings are replaced, or put back if one is refused
        4  rank 0 reads tensor by tensor, and every rank takes what it keeps of each
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lockstep.comm.broadcast import all_gather_text, broadcast_tensor, broadcast_text
from lockstep.errors import BadInput, printable
from lockstep.state.holdings import split_state_name
from lockstep.state.table import StateTable, agree, dtype_name
from lockstep.strategies.load_state import SCALARS
from lockstep.train.checkpoint_file import Draft, Saved, stored_name
from lockstep.train.checkpoint_header import (
    Arithmetic,
    CheckpointHeader,
    CheckpointWriter,
    differences,
    read_header,
    refuse_other,
)
from lockstep.train.final_weights import weight_names
from lockstep.train.optimizer_settings import (
    apply_plain_state,
    apply_settings,
    changed_settings,
    check_counters,
    check_settings,
    settings_of,
)
from lockstep.train.spec import versions
from lockstep.train.streamed_file import rows, write_streamed
from lockstep.train.tensor_format import StoredTensor

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.train.trainer import Trainer

COUNTER_BYTES = 16
"""Of one number, however it is stored."""


def save(trainer: Trainer, path: Path, arithmetic: Arithmetic) -> None:
    """Write a checkpoint, whole or not at all; all workers call this together, and return when it is in place."""
    group, holdings = trainer.mesh.everyone, trainer.strategy.holdings()
    table = agree(group, holdings)
    settings = settings_of(trainer.strategy.tuned()[0])
    if trainer.mesh.stages > 1:  # each stage has the plain values of its own parameters
        told = all_gather_text(json.dumps(settings["plain"]), trainer.mesh.across_stages)
        settings["plain"] = {name: values for text in told for name, values in json.loads(text).items()}
    write_streamed(group, table, holdings, partial(_begin, trainer, path, arithmetic, settings, table))


def load(
    trainer: Trainer, open_file: Callable[[], Saved], arithmetic: Arithmetic
) -> tuple[CheckpointHeader, list[str]]:
    """Take over a checkpoint; all workers call this together, and only rank 0 opens the file.

    Returns its header, and what may make other bits than an unbroken run's.
    """
    saved, where, header, tensors, counters = _agree(trainer, open_file)
    try:
        refuse_other(header.arithmetic, arithmetic, where)
        _check_tensors(trainer, tensors, where)
        for tuned in trainer.strategy.tuned():
            check_settings(header.settings, tuned, where)
            if header.first_settings is not None:
                check_settings(header.first_settings, tuned, where)
            check_counters(counters, tuned, where)
        for tuned in trainer.strategy.tuned():
            apply_settings(header.settings, tuned, where)
        trainer.strategy.load(_pieces(trainer, saved, tensors))
        for tuned in trainer.strategy.tuned():
            apply_plain_state(header.settings, tuned)
    finally:
        if saved is not None:
            saved.close()
    here = writer_of(trainer)
    changed = changed_settings(header.first_settings, trainer.first_settings)
    trainer.first_settings = header.first_settings  # of the run, of which this is a part
    return header, [*changed, *differences(header.writer, here, header.arithmetic)]


def writer_of(trainer: Trainer) -> CheckpointWriter:
    """Return who would write a checkpoint now."""
    return CheckpointWriter(
        strategy=trainer.settings.strategy,
        workers=trainer.settings.workers,
        device=trainer.world.device.partition(":")[0],
        versions=versions(),
        time=time.time(),
    )


def _begin(trainer: Trainer, path: Path, arithmetic: Arithmetic, settings: dict[str, Any], table: StateTable) -> Draft:
    header = CheckpointHeader(
        step=trainer.steps,
        epoch=trainer.epoch,
        epoch_step=trainer.epoch_step,
        arithmetic=arithmetic,
        writer=writer_of(trainer),
        settings=settings,
        first_settings=trainer.first_settings,
        best=trainer.best,
        weights={name: stored_name(state) for name, state in weight_names(trainer.model).items()},
    )
    return Draft(path, header.as_json(), rows(table))


def _agree(
    trainer: Trainer, open_file: Callable[[], Saved]
) -> tuple[Saved | None, str, CheckpointHeader, list[StoredTensor], dict[str, str]]:
    """Step 1: every rank gets the header, tensors and counters' bytes, or raises what rank 0 found wrong."""
    group = trainer.mesh.everyone
    saved, text = None, ""
    if group.rank == 0:
        try:
            saved = open_file()
        except BadInput as error:
            text = json.dumps({"refused": str(error)})
        else:
            table = [[one.name, one.dtype, one.shape, one.start] for one in saved.tensors.values()]
            counters = {one.name: saved.read(one.name).hex() for one in saved.tensors.values() if is_counter(one)}
            offer = {"where": str(saved.path), "header": saved.header, "tensors": table, "counters": counters}
            text = json.dumps(offer)
    offered = json.loads(broadcast_text(text, group))
    if "refused" in offered:
        raise BadInput(offered["refused"])
    tensors = [StoredTensor(name, dtype, tuple(shape), start) for name, dtype, shape, start in offered["tensors"]]
    try:
        header = read_header(offered["header"], offered["where"])
    except BaseException:
        if saved is not None:
            saved.close()
        raise
    return saved, offered["where"], header, tensors, offered["counters"]


def is_counter(tensor: StoredTensor) -> bool:
    """Say whether a stored tensor is one number that the optimizer keeps for a parameter."""
    split = split_state_name(tensor.name)
    return split is not None and split[1] in SCALARS and tensor.nbytes <= COUNTER_BYTES


def _check_tensors(trainer: Trainer, tensors: list[StoredTensor], where: str) -> None:
    """Step 2: the same parameters and buffers, and optimizer state of parameters that are trained here."""
    model = trainer.model
    here: dict[str, Tensor] = {f"parameter/{name}": p for name, p in model.named_parameters()}
    here |= {f"buffer/{name}": b for name, b in model.named_buffers()}
    mine = {name: f"{dtype_name(t.dtype)} {tuple(t.shape)}" for name, t in here.items()}
    theirs = {p.name: f"{p.dtype} {p.shape}" for p in tensors if split_state_name(p.name) is None}
    for name in (*(name for name in mine if name in theirs), *theirs, *mine):  # as the model has them, then the rest
        if theirs.get(name) != mine.get(name):
            shown = printable(name.replace("/", " ", 1))
            raise BadInput(
                f"{where} is of another model: {shown} is {theirs.get(name, 'not in it')} there, and "
                f"{mine.get(name, 'absent')} here. Use the model that it was written with"
            )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    held: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in tensors:
        if (split := split_state_name(tensor.name)) is not None:
            owner, key = split
            held.setdefault(key, {})[owner] = tensor.shape
            if owner not in trained:
                raise BadInput(
                    f"{where} has optimizer state of {printable(owner)}, which is not trained here: freeze it in both"
                )
    trainer.strategy.check_state(held, where)


def _pieces(trainer: Trainer, saved: Saved | None, tensors: list[StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Step 4: yield every tensor on every rank; rank 0 reads it."""
    for tensor in tensors:
        dtype: torch.dtype = getattr(torch, tensor.dtype)
        value = torch.empty(tensor.shape, dtype=dtype)
        if saved is not None and value.numel():
            value = torch.frombuffer(saved.read(tensor.name), dtype=dtype).reshape(tensor.shape)
        yield tensor.name, broadcast_tensor(value, trainer.mesh.everyone)
