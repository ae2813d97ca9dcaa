"""Frames: a description and its tensors in one message, whatever came before."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.stages import frames
from lockstep.stages.values import flat_elements, form_of

VALUES = {
    "float": torch.randn(5, 7),
    "turned": torch.randn(64, 40).t(),
    "long": torch.arange(3000),
    "bool": torch.tensor([True, False, True]),
    "half": torch.randn(3, 3).bfloat16(),
    "number": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
    "large": torch.randn(500, 500),
}


def passed(content: bytes, tensors: list[Tensor], usual: int) -> tuple[bytes, list[Tensor], int]:
    """Return what arrives, by the two messages of a frame, and the size to expect next."""
    forms = [form_of(one) for one in tensors]
    elements = [flat_elements(one, form) for one, form in zip(tensors, forms, strict=True)]
    assert frames.may_hold(elements) == (sum(one.nbytes for one in elements) <= frames.INSIDE)
    sent, size = frames.fill(content, elements, usual)
    first, rest = sent[:usual].clone(), sent[usual:].clone()
    assert len(rest) == max(0, frames.size_of(first) - usual)
    frame = frames.Frame(torch.cat([first, rest]) if len(rest) else first)
    assert frame.inside
    return frame.content, frame.tensors(forms), frames.usual_after(size, usual)


@given(st.lists(st.tuples(st.binary(max_size=9000), st.lists(st.sampled_from(sorted(VALUES)), max_size=4)), max_size=4))
def test_what_arrives_is_what_was_sent(values: list[tuple[bytes, list[str]]]) -> None:
    usual = frames.FIRST
    for content, names in values:
        tensors = [VALUES[name] for name in names]
        came, arrived, usual = passed(content, tensors, usual)
        assert came == content
        for sent, one in zip(tensors, arrived, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (sent.dtype, sent.shape, sent.stride())
            assert torch.equal(one, sent)
            assert one.data_ptr() % frames.ALIGN == 0 or not one.numel()


def test_a_change_in_place_is_no_change_of_the_others() -> None:
    _, (one, other), _ = passed(b"", [VALUES["float"], VALUES["long"]], frames.FIRST)
    weight = torch.ones(5, 7, requires_grad=True)
    total = (weight * one).sum()
    other.add_(1)
    total.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, VALUES["float"])


def test_large_tensors_follow_their_description() -> None:
    frame = frames.Frame(frames.fill(b"description", None, frames.FIRST)[0])
    assert (frame.content, frame.inside) == (b"description", False)
    assert not frames.may_hold([torch.empty(frames.INSIDE + 1, dtype=torch.uint8)])


def test_the_next_frame_is_expected_to_be_like_the_last() -> None:
    assert frames.usual_after(40_000, frames.FIRST) == 5 * frames.FIRST
    assert frames.usual_after(30_000, 5 * frames.FIRST) == 5 * frames.FIRST  # a little smaller
    assert frames.usual_after(9_000, 5 * frames.FIRST) == 2 * frames.FIRST
    assert frames.usual_after(100, frames.FIRST) == frames.FIRST
