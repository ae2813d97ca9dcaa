"""The trained weights of a run: what `model.state_dict()` holds, written by those who hold it, in its own dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.state.holdings import model_only
from lockstep.state.table import agree, dtype_name
from lockstep.torch_compat.modules import is_compiled, uncompiled_name
from lockstep.train.streamed_file import rows, write_streamed
from lockstep.train.tensor_format import place_tensors
from lockstep.train.weights import WeightsDraft

if TYPE_CHECKING:
    from torch import nn

    from lockstep.comm.group import Group
    from lockstep.state.holdings import Holding


def weight_names(model: nn.Module) -> dict[str, str]:
    """Return the names of the plain model's `state_dict`, and of which tensor of the training state each is.

    What a module adds to its `state_dict` by code of its own is left out. A model inside `torch.compile` has the names
    that it has outside.
    """
    states = {id(parameter): f"parameter/{name}" for name, parameter in model.named_parameters()}
    states |= {id(buffer): f"buffer/{name}" for name, buffer in model.named_buffers()}
    compiled = is_compiled(model)
    return {
        uncompiled_name(name) if compiled else name: states[id(tensor)]
        for name, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) in states
    }


def check_weights(model: nn.Module) -> None:
    """Refuse a model whose weights cannot be written, before it is trained."""
    kinds = {f"parameter/{name}": (dtype_name(one.dtype), tuple(one.shape)) for name, one in model.named_parameters()}
    kinds |= {f"buffer/{name}": (dtype_name(one.dtype), tuple(one.shape)) for name, one in model.named_buffers()}
    place_tensors([(plain, *kinds[name]) for plain, name in weight_names(model).items()])


def write_weights(
    path: Path,
    group: Group,
    holdings: Sequence[Holding],
    model: nn.Module,
    about: Mapping[str, Any],
    most_bytes: int | None = None,
) -> None:
    """Write the weights to a file, whole or not at all, unless they have more than `most_bytes`.

    All ranks of the group call this together, and return when the file is in place.
    """
    held = model_only(holdings)
    table = agree(group, held)
    if most_bytes is not None and sum(entry.numel * entry.dtype.itemsize for entry in table.entries) > most_bytes:
        return

    def begin() -> WeightsDraft:
        return WeightsDraft(path, about, weight_names(model), rows(table))

    write_streamed(group, table, held, begin)
