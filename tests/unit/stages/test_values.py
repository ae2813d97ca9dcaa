"""What passes between stages comes out as it went in: values, layout and identity."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from lockstep.errors import BadInput
from lockstep.stages.values import PassedValue, flat_elements, pack, unpack


def passed(value: Any) -> Any:
    """Send a value as a transfer does."""
    packed, tensors = pack(value, "a layer")
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=PassedValue)
    came = []
    for tensor, form in zip(tensors, told.tensors, strict=True):
        room = form.room("cpu")
        room.copy_(flat_elements(tensor, form))
        came.append(form.shaped(room))
    return unpack(told, came)


LAYOUTS = {
    "plain": torch.arange(24.0).view(2, 3, 4),
    "transposed": torch.arange(24.0).view(2, 3, 4).transpose(0, 2),
    "channels last": torch.arange(48.0).view(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": torch.arange(3.0).view(1, 3, 1).expand(4, 3, 5),
    "every other": torch.arange(24.0)[::2],
    "of a large one": torch.arange(800.0).view(8, 100)[:, 3],
    "transposed, of a large one": torch.arange(800.0).view(4, 2, 100)[:, :, 3].t(),
    "empty": torch.empty(0, 3),
    "a number": torch.tensor(3),
    "flags": torch.tensor([True, False]),
    "half": torch.arange(4.0).bfloat16(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_keeps_its_values_and_the_order_of_its_strides(name: str) -> None:
    tensor = LAYOUTS[name]
    came: Tensor = passed(tensor)
    assert came.dtype == tensor.dtype
    assert torch.equal(came, tensor)
    if "large" in name:
        ranked = [sorted(range(one.dim()), key=one.stride) for one in (came, tensor)]
        assert ranked[0] == ranked[1]
        assert came.untyped_storage().nbytes() == tensor.numel() * 4, "the gaps are not sent"
    else:
        assert came.stride() == tensor.stride()


def test_values_in_values() -> None:
    shared = torch.ones(2)
    value = {"a": [shared, (None, 3, 0.5, "text", True)], "b": (shared, torch.zeros(1))}
    came = passed(value)
    assert list(came) == ["a", "b"]
    assert came["a"][1] == (None, 3, 0.5, "text", True)
    assert came["a"][0] is came["b"][0], "one tensor stays one"
    assert torch.equal(came["b"][1], torch.zeros(1))


def test_a_shape_stays_a_shape() -> None:
    came = passed((torch.ones(1), torch.ones(2, 3).shape))
    assert came[1] == torch.Size([2, 3])
    assert type(came[1]) is torch.Size


def test_why_a_dict_cannot_be_sent() -> None:
    with pytest.raises(BadInput, match="its key 1 is no text"):
        pack({1: torch.ones(1)}, "the layer body")


def test_what_is_trained_is_told() -> None:
    packed, _ = pack((torch.ones(1, requires_grad=True), torch.ones(1)), "a layer")
    assert [form.trained for form in packed.tensors] == [True, False]


@pytest.mark.parametrize(
    "value", [OrderedDict(a=torch.ones(1)), {1: torch.ones(1)}, object(), {torch.ones(1)}, 1 << 70]
)
def test_what_cannot_be_sent(value: Any) -> None:
    with pytest.raises(BadInput, match=r"the layer body passes a \w+ to the next stage, which cannot be sent"):
        pack(value, "the layer body")
