"""Tensors as the collectives need them: on the CPU, contiguous, flat, outside autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstep.comm.collectives import Span


def check_cpu(tensors: Iterable[Tensor]) -> None:
    """Raise if a tensor is not dense, plain and on the CPU."""
    for tensor in tensors:
        if not tensor.is_cpu:
            raise BadInput(
                f'backend "shm" needs CPU tensors, found one on {tensor.device}: move it with .cpu(), '
                f'or use init_process_group("nccl") for tensors on accelerators'
            )
        if tensor.layout is not torch.strided:
            raise BadInput(
                f"this collective needs dense tensors, found {tensor.layout}: only all_reduce accepts sparse ones"
            )
        if tensor.is_quantized or tensor.is_nested:
            kind = "quantized" if tensor.is_quantized else "nested"
            raise BadInput(f'backend "shm" needs plain tensors, found a {kind} one: exchange what it is made of')


def check_written(tensors: Iterable[Tensor]) -> None:
    """Raise if a result cannot be written to a tensor, before anything is exchanged."""
    for tensor in tensors:
        if any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
            raise BadInput(
                f"found an expanded tensor (shape {tuple(tensor.shape)}, strides {tensor.stride()}), of which several "
                "elements are one number in memory: a result cannot be written to it; use .contiguous()"
            )


def plain(tensor: Tensor) -> bool:
    """Return whether a tensor's bytes can be copied as they are: a dense contiguous CPU tensor without lazy bits."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def span(tensor: Tensor) -> Span:
    """Return where a contiguous tensor's bytes are."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def flat(tensor: Tensor) -> Tensor:
    """Return the elements as one row: a view if the tensor is contiguous, else a copy."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():  # torch's lazy bits: the bytes are not yet the numbers
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    return tensor.reshape(-1).contiguous()


def put_back(tensor: Tensor, row: Tensor) -> None:
    """Write a result to its tensor, if `flat` had to copy it."""
    if row.data_ptr() != tensor.data_ptr() and row.numel():
        tensor.detach().copy_(row.view(tensor.shape))


def pieces(row: Tensor, count: int, what: str) -> list[Tensor]:
    """Cut a flat tensor into `count` equal pieces."""
    each, rest = divmod(row.numel(), count)
    if rest:
        raise BadInput(
            f"{what} has {row.numel()} elements, expected a multiple of {count}, the number of ranks: pad the tensor"
        )
    return [row[r * each : (r + 1) * each] for r in range(count)]


def split(row: Tensor, rows: int, sizes: Sequence[int], count: int, what: str) -> list[Tensor]:
    """Cut a flat tensor of `rows` first-dimension rows by split sizes, equally if there are none."""
    if not sizes:
        if count and rows % count:
            raise BadInput(
                f"{what} has {rows} rows, expected a multiple of {count}, the number of ranks: pass split sizes"
            )
        sizes = [rows // count] * count
    if len(sizes) != count or sum(sizes) != rows:
        raise BadInput(
            f"{what}: split sizes {list(sizes)} must be {count} numbers that add up to the {rows} rows of the tensor"
        )
    width = row.numel() // rows if rows else 0
    result, start = [], 0
    for size in sizes:
        result.append(row[start * width : (start + size) * width])
        start += size
    return result


def check_list(tensors: Sequence[Tensor], like: Tensor, count: int, what: str) -> None:
    """Raise unless the list has one tensor for every rank, each of the size and dtype of `like`."""
    if len(tensors) != count or any(t.numel() != like.numel() or t.dtype != like.dtype for t in tensors):
        actual = [f"{t.numel()} x {t.dtype}" for t in tensors]
        wanted = f"{like.numel()} x {like.dtype}"
        raise BadInput(f"{what} must be {count} tensors of {wanted}, one for every rank; found {actual}")
