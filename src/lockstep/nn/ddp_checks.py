"""What must hold for a wrapped model: the same on every rank, and the same as when it was wrapped."""

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
from lockstep.nn.buckets import Parameter

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

_facts = attrgetter("requires_grad", "shape", "dtype", "device")


def specs(named: Mapping[str, nn.Parameter]) -> list[Parameter]:
    """Return what the bucket plan needs to know."""
    return [
        Parameter(
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
    """Refuse, on every rank alike, models whose names, shapes or dtypes differ between ranks. A collective call."""
    lines = ["options " + options]
    for name, p in module.named_parameters():
        grad = "" if p.requires_grad else ", frozen"
        lines.append(f"parameter {name}: {list(p.shape)} {p.dtype}, strides {list(p.stride())}{grad}")
    lines += [f"buffer {name}: {list(b.shape)} {b.dtype}" for name, b in module.named_buffers()]
    short = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(all_gather_text(short, Group.of(group, str(device))))) == 1:
        return
    everyone = [json.loads(text) for text in all_gather_text(json.dumps(lines), Group.of(group, str(device)))]
    raise BadInput(first_difference(everyone, torch.distributed.get_process_group_ranks(group)))


def first_difference(everyone: Sequence[Sequence[str]], ranks: Sequence[int]) -> str:
    """Return an error that names the first line in which a rank differs from the first rank."""
    other = next(r for r, lines in enumerate(everyone) if lines != everyone[0])
    longest = max(len(everyone[0]), len(everyone[other]))
    mine, its = ([*lines, *["nothing more"] * (longest - len(lines))] for lines in (everyone[0], everyone[other]))
    at = next(i for i in range(longest) if mine[i] != its[i])
    return (
        f"the ranks do not wrap the same model: rank {ranks[0]} has {mine[at]}; rank {ranks[other]} has {its[at]}. "
        "Build the same model with the same options on every rank"
    )


class Watch:
    """The parameters of a model as they were, and a quick look whether they still are."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._named = dict(module.named_parameters(remove_duplicate=False))
        self._parameters = list(self._named.values())
        self._as_wrapped = list(map(_facts, self._parameters))
        modules = list(module.modules())
        self._tables = [m._parameters for m in modules]
        self._children = [m._modules for m in modules]
        self._places = [(m._parameters, name) for m in modules for name, p in m._parameters.items() if p is not None]
        self._held = [table[name] for table, name in self._places]
        self._counts = self._count()

    def _count(self) -> tuple[list[int], list[int]]:
        return list(map(len, self._tables)), list(map(len, self._children))

    def check(self) -> None:
        """Refuse a model that was changed since it was wrapped, naming the first parameter concerned."""
        now = [table.get(name) for table, name in self._places]
        if (
            all(map(is_, now, self._held))
            and list(map(_facts, self._parameters)) == self._as_wrapped
            and self._count() == self._counts
        ):
            return
        problem = self._explain()
        if problem:
            raise BadInput(
                f"{problem}: its gradients would not be reduced. Change the model first, then wrap it (again)"
            )
        self.__init__(self._module)  # type: ignore[misc]  # nothing that matters: a module without parameters, say

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
    """Return what happened to a parameter, from its facts before and after."""
    if now[0] != then[0]:
        return "was frozen (requires_grad_(False))" if then[0] else "was unfrozen (requires_grad_(True))"
    for what, new, old in zip(("shape", "dtype", "device"), now[1:], then[1:], strict=True):
        if new != old:
            plain = [list(value) if isinstance(value, torch.Size) else value for value in (old, new)]
            return f"changed its {what} from {plain[0]} to {plain[1]}"
    return ""
