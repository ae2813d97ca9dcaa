"""Numbers, text and containers as JSON and back, exactly; anything else is refused, and nothing is ever called."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from lockstep.errors import BadInput

MOST_BYTES = 1 << 16


def encode(value: Any, where: str) -> Any:
    """Return what JSON can hold without loss; `where` names the value in a refusal."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is list:
        return [encode(one, where) for one in value]
    if type(value) is tuple:
        return {"tuple": [encode(one, where) for one in value]}
    if type(value) in (dict, Counter):
        kind = "dict" if type(value) is dict else "counter"
        return {kind: [[encode(key, where), encode(one, f"{where}[{key!r}]")] for key, one in value.items()]}
    if (tensor := _encode_tensor(value)) is not None:
        return tensor
    raise BadInput(
        f"{where} is a {type(value).__name__}, and a checkpoint holds numbers, text, lists, tuples, dicts and tensors: "
        "keep such state out of it"
    )


def decode(value: Any) -> Any:
    """Return the value that `encode` was given; refuse what it did not make."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    try:
        ((kind, content),) = value.items()
        if kind == "float":
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[content]
        if kind == "tuple":
            return tuple(decode(content))
        if kind in ("dict", "counter"):
            pairs = {_key(decode(key)): decode(one) for key, one in content}
            return pairs if kind == "dict" else Counter(pairs)
        if kind == "tensor":
            return _decode_tensor(*content)
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:  # and nested too deeply
        raise BadInput(f"{value!r:.80} is no value of a checkpoint") from error
    raise BadInput(f"{value!r:.80} is no value of a checkpoint")


def _key(value: Any) -> Any:
    hash(value)
    return value


def _encode_tensor(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or value.numel() * value.element_size() > MOST_BYTES:
        return None
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), bytes(flat.tolist()).hex()]}


def _decode_tensor(dtype: str, shape: list[int], content: str) -> Any:
    import torch

    from lockstep.train.tensor_format import DTYPES, PAIRS

    data = bytearray.fromhex(content)
    if not data or not (dtype in DTYPES or dtype in PAIRS):
        raise ValueError(dtype)
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape)
