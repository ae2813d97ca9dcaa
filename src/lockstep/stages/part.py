"""One stage's part of a model: the plain model, of which only some tensors are here, under their plain names."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.torch_compat.modules import buffers_of, parameters_of


class Part(nn.Module):
    """Shows only the parameters and buffers that a stage answers for."""

    def __init__(self, whole: nn.Module, owned: Set[str]) -> None:
        super().__init__()
        self._plain = (whole,)  # in a tuple, it is no child of this module, and names stay as they are
        self._owned = owned

    def named_parameters(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of this stage."""
        for name, parameter in self._plain[0].named_parameters(*arguments, **named):
            if f"parameter/{name}" in self._owned:
                yield name, parameter

    def named_buffers(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers of this stage."""
        for name, buffer in self._plain[0].named_buffers(*arguments, **named):
            if f"buffer/{name}" in self._owned:
                yield name, buffer

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        """Yield the modules of the plain model."""
        del remove_duplicate  # each is yielded once, in every version of torch
        return self._plain[0].modules()

    def get_parameter(self, target: str) -> nn.Parameter:
        """Return a parameter by its plain name."""
        return self._plain[0].get_parameter(target)

    def get_buffer(self, target: str) -> Tensor:
        """Return a buffer by its plain name."""
        return self._plain[0].get_buffer(target)


def keep_only(model: nn.Module, present: Set[str]) -> None:
    """Free the parameters and buffers that a stage does not have: their shapes stay, on torch's `meta` device."""
    kept = {id(p) for name, p in model.named_parameters() if f"parameter/{name}" in present}
    kept |= {id(b) for name, b in model.named_buffers() if f"buffer/{name}" in present}
    emptied: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (parameters_of(module), buffers_of(module)):
            for name, tensor in table.items():
                if tensor is not None and id(tensor) not in kept:
                    table[name] = emptied.setdefault(id(tensor), _without_elements(tensor))  # type: ignore[assignment]


def _without_elements(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
