"""Checks of a wrapped model: it is the same on every rank, and the same as when it was wrapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter, is_
from typing import TYPE_CHECKING

import torch

from lockstep.comm.broadcast import all_gather_text
from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.nn.buckets import ParameterSpec
from lockstep.torch_compat.modules import children_of, parameters_of

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

_facts = attrgetter("requires_grad", "shape", "dtype", "device")


def parameter_specs(named: Mapping[str, nn.Parameter]) -> list[ParameterSpec]:
    """Return what the bucket plan needs to know of each parameter."""
    return [
        ParameterSpec(
            name=name,
            shape=tuple(p.shape),
            stride=tuple(p.stride()),
            dtype=p.dtype,
            device=p.device,
            requires_grad=p.requires_grad,
        )
        for name, p in named.items()
    ]


def check_same_model(module: nn.Module, options: str, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raise on every rank if names, shapes, dtypes or options differ between ranks. A collective call."""
    lines = ["options " + options]
    for name, p in module.named_parameters():
        grad = "" if p.requires_grad else ", frozen"
        lines.append(f"parameter {name}: {list(p.shape)} {p.dtype}, strides {list(p.stride())}{grad}")
    lines += [f"buffer {name}: {list(b.shape)} {b.dtype}" for name, b in module.named_buffers()]
    members = Group.of(group, str(device))
    fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(all_gather_text(fingerprint, members))) == 1:
        return
    by_rank = [json.loads(text) for text in all_gather_text(json.dumps(lines), members)]
    raise BadInput(first_difference(by_rank, torch.distributed.get_process_group_ranks(group)))


def first_difference(by_rank: Sequence[Sequence[str]], ranks: Sequence[int]) -> str:
    """Return an error message with the first line in which a rank differs from the first rank."""
    other = next(r for r, lines in enumerate(by_rank) if lines != by_rank[0])
    longest = max(len(by_rank[0]), len(by_rank[other]))
    mine, its = ([*lines, *["nothing more"] * (longest - len(lines))] for lines in (by_rank[0], by_rank[other]))
    at = next(i for i in range(longest) if mine[i] != its[i])
    return (
        f"the model or its options differ between ranks: rank {ranks[0]} has {mine[at]}; rank {ranks[other]} has "
        f"{its[at]}. Build the same model with the same options on every rank"
    )


class WrappedModel:
    """The parameters of a model as they were when it was wrapped, and a fast check that they still are."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._named = dict(module.named_parameters(remove_duplicate=False))
        self._parameters = list(self._named.values())
        self._as_wrapped = list(map(_facts, self._parameters))
        modules = list(module.modules())
        self._tables = [parameters_of(m) for m in modules]
        self._children = [children_of(m) for m in modules]
        self._places = [
            (parameters_of(m), name) for m in modules for name, p in parameters_of(m).items() if p is not None
        ]
        self._held = [table[name] for table, name in self._places]
        self._counts = self._count()

    def _count(self) -> tuple[list[int], list[int]]:
        return list(map(len, self._tables)), list(map(len, self._children))

    def check(self) -> None:
        """Raise if the model was changed since it was wrapped; the error names the first changed parameter."""
        now = [table.get(name) for table, name in self._places]
        if (
            all(map(is_, now, self._held))
            and list(map(_facts, self._parameters)) == self._as_wrapped
            and self._count() == self._counts
        ):
            return
        problem = self._explain()
        if problem:
            raise BadInput(f"{problem}: its gradients would not be reduced. Wrap the model again after changing it")
        self.__init__(self._module)  # type: ignore[misc]  # a harmless change, e.g. a module without parameters

    def _explain(self) -> str:
        named = dict(self._module.named_parameters(remove_duplicate=False))
        for name, p in named.items():
            before = self._named.get(name)
            if before is None:
                return f"parameter {name} was added after wrapping"
            if p is not before:
                return f"parameter {name} was replaced by another tensor after wrapping"
        for (name, p), then in zip(self._named.items(), self._as_wrapped, strict=True):
            if name not in named:
                return f"parameter {name} was removed after wrapping"
            text = _changed(_facts(p), then)
            if text:
                return f"parameter {name} {text} after wrapping"
        return ""


def _changed(now: tuple[object, ...], then: tuple[object, ...]) -> str:
    """Return what changed in a parameter, or an empty text."""
    if now[0] != then[0]:
        return "was frozen (requires_grad_(False))" if then[0] else "was unfrozen (requires_grad_(True))"
    for what, new, old in zip(("shape", "dtype", "device"), now[1:], then[1:], strict=True):
        if new != old:
            plain = [list(value) if isinstance(value, torch.Size) else value for value in (old, new)]
            return f"changed its {what} from {plain[0]} to {plain[1]}"
    return ""
