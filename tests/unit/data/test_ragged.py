"""Every way into a Ragged, against a plain list of the same items."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lockstep.data import Packed, Padded, Ragged
from lockstep.errors import BadInput
from tests.unit.data.plain import PATIENT, lists, same


@PATIENT
@given(lists())
def test_items_slices_and_iteration(items: list[Any]) -> None:
    ragged = Ragged(items)
    assert len(ragged) == len(items)
    assert same(list(ragged), items)
    for index in range(-len(items), len(items)):
        assert same(ragged[index], items[index])
        assert same(ragged[np.int64(index)], items[index])
    for part in (slice(None), slice(1, -1), slice(None, None, -2), slice(5, 2)):
        assert same(ragged[part], items[part])
    for outside in (len(items), -len(items) - 1):
        with pytest.raises(IndexError, match=f"index {outside} is out of range for {len(items)} items"):
            ragged[outside]
        with pytest.raises(IndexError, match=f"index {outside} is out of range for {len(items)} items"):
            ragged[[outside]]


@PATIENT
@given(lists(least=1), st.data())
def test_lists_of_indices_and_masks(items: list[Any], data: st.DataObject) -> None:
    ragged = Ragged(items)
    chosen = data.draw(st.lists(st.integers(-len(items), len(items) - 1), max_size=9))
    expected = [items[index] for index in chosen]
    assert same(ragged[chosen], expected)
    assert same(ragged[torch.tensor(chosen, dtype=torch.int64)], expected)
    assert same(ragged[np.array(chosen, dtype=np.int32)], expected)
    mask = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
    expected = [item for item, wanted in zip(items, mask, strict=True) if wanted]
    for form in (mask, np.array(mask), torch.tensor(mask)):
        assert same(ragged[form], expected)
    with pytest.raises(IndexError, match="a mask of shape"):
        ragged[[*mask, True]]


@PATIENT
@given(lists(), st.booleans())
def test_through_a_file_and_a_handle(items: list[Any], streamed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.ragged"
        if streamed:
            Ragged.write(path, iter(items))
        else:
            Ragged(items).save(path)
        assert [found.name for found in Path(folder).iterdir()] == ["data.ragged"]
        opened = Ragged.open(path, verify=True)
        assert same(list(opened), items)
        assert same(list(pickle.loads(pickle.dumps(opened))), items)
    assert same(list(opened), items), "a mapped file stays readable after it was removed"
    ragged = Ragged(iter(items))
    handle = pickle.dumps(ragged)
    assert len(handle) < 200
    assert same(list(pickle.loads(handle)), items)
    assert same(list(copy.deepcopy(ragged)), items)


@PATIENT
@given(lists(least=1), st.data())
def test_concatenation(items: list[Any], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(items)))
    assert same(list(Ragged(items[:cut]) + Ragged(items[cut:])), items)


@PATIENT
@given(lists(least=1), st.data())
def test_batches_hold_the_items(items: list[Any], data: st.DataObject) -> None:
    """Whatever the way, taking the batch apart gives the items back; gather and collate agree."""
    ragged = Ragged(items)
    chosen = data.draw(st.lists(st.integers(0, len(items) - 1), min_size=1, max_size=6))
    expected = [items[index] for index in chosen]
    assert same(ragged.gather(chosen, "list"), expected)
    for how in ("packed", "padded", "nested"):
        try:
            batch = ragged.gather(torch.tensor(chosen), how)
        except BadInput:
            assert how != "packed"
            with pytest.raises(BadInput, match=r"differ only in their|different numbers of dimensions"):
                ragged.gather(torch.tensor(chosen), how)
            continue
        assert same(whole(batch), expected)
        assert same(whole(ragged.batched(how).collate(ragged[chosen])), expected)


def whole(batch: Any) -> list[Any]:
    """Take a batch apart into items."""
    if isinstance(batch, dict):
        rows = zip(*map(apart, batch.values()), strict=True)
        return [dict(zip(batch, row, strict=True)) for row in rows]
    return list(zip(*map(apart, batch), strict=True)) if type(batch) is tuple else apart(batch)


def apart(column: Any) -> list[Any]:
    """Take one field of a batch apart."""
    if isinstance(column, list):
        return column
    if isinstance(column, Packed):
        pieces = [column.values[a:b] for a, b in zip(column.offsets[:-1], column.offsets[1:], strict=True)]
        if column.shapes is None:
            return pieces
        shapes = [[size for size in row if size >= 0] for row in column.shapes.tolist()]
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    if isinstance(column, Padded):
        sizes = column.lengths if column.lengths.dim() == 2 else column.lengths[:, None]
        return [row[tuple(slice(n) for n in size)] for row, size in zip(column.values, sizes.tolist(), strict=True)]
    return list(column.unbind())


def test_padding_is_filled() -> None:
    ragged = Ragged([torch.ones(1), torch.ones(3)]).batched("padded", fill=-7.0)
    assert ragged.gather([0, 1]).values.tolist() == [[1, -7, -7], [1, 1, 1]]
    assert pickle.loads(pickle.dumps(ragged)).gather([0, 1]).values.tolist() == [[1, -7, -7], [1, 1, 1]]
    square = Ragged([torch.ones(1, 2), torch.ones(2, 1)])
    assert square.gather([0, 1], "padded").values.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]


def test_items_of_one_shape_are_a_dense_tensor_in_every_batch() -> None:
    ragged = Ragged([torch.full((2, 2), i) for i in range(4)])
    for how in ("packed", "padded", "nested"):
        assert torch.equal(ragged.gather([3, 1], how), torch.stack([torch.full((2, 2), 3), torch.full((2, 2), 1)]))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bfloat16, torch.float8_e5m2])
def test_types_that_torch_hardly_computes_with(dtype: torch.dtype) -> None:
    for shapes in ([(2, 2)] * 3, [(), (), ()], [(1,), (3,), (0,)], [(1, 2), (2, 1), (2, 2)]):
        items = [torch.ones(shape).to(dtype) for shape in shapes]
        ragged = Ragged(items)
        for how in ("packed", "padded"):
            assert same(whole(ragged.gather([2, 0], how)), [items[2], items[0]])


def test_a_view_is_the_memory_itself_and_a_write_stays_here() -> None:
    """Views of one item share memory; another mapping of the same bytes, and the file, do not see a write."""
    ragged = Ragged([torch.zeros(3), torch.zeros(5)])
    view = ragged[1]
    assert ragged[1].data_ptr() == view.data_ptr()
    view.fill_(7.0)
    assert ragged[1].tolist() == [7.0] * 5
    with open(f"/proc/self/fd/{ragged._mapping.descriptor}", "rb") as behind:
        assert np.float32(7.0).tobytes() not in behind.read()
    del ragged
    assert view.tolist() == [7.0] * 5, "a view keeps its memory alive"


def test_a_write_does_not_reach_the_file(tmp_path: Path) -> None:
    ragged = Ragged.write(tmp_path / "x", [torch.zeros(3), torch.zeros(5)])
    ragged[0].fill_(1.0)
    again = Ragged.open(tmp_path / "x", verify=True)
    assert again[0].tolist() == [0.0] * 3
    ragged.save(tmp_path / "y")
    assert Ragged.open(tmp_path / "y", verify=True)[0].tolist() == [1.0] * 3, "save writes what this process sees"


def test_what_leaves_the_process_is_one_item_not_the_mapping() -> None:
    ragged = Ragged([torch.zeros(1000) for _ in range(1000)])
    assert ragged[3].untyped_storage().nbytes() == 4000
    assert ragged[[3]][0].untyped_storage().nbytes() == 4000


def test_values_begin_at_a_page(tmp_path: Path) -> None:
    """See [Note: values at a page]: an item of a page's size lies in one page, whatever came before it."""
    items = [(torch.full((1024,), float(i)), torch.full((512,), i), "text") for i in range(5)]
    for ragged in (Ragged(items), Ragged.write(tmp_path / "x", items)):
        for wide, other, _ in ragged:
            assert wide.data_ptr() % 4096 == other.data_ptr() % 4096 == 0


def test_a_generator_may_fill_one_buffer_again_and_again(tmp_path: Path) -> None:
    def reused() -> Any:
        buffer = np.zeros(2, dtype=np.int64)
        for number in range(2500):
            buffer[:] = number
            yield buffer

    for ragged in (Ragged(reused()), Ragged.write(tmp_path / "x", reused())):
        assert [int(item[1]) for item in ragged] == list(range(2500))


@pytest.mark.parametrize("odd", [(), (700,), (1500,), (1000, 1001), (2999,)])
def test_many_at_once_and_one_by_one_are_the_same(odd: tuple[int, ...]) -> None:
    """Long lists are taken in blocks; a block with an unusual tensor in it is taken one by one."""
    items = [torch.full((i % 4, 2), i) for i in range(3000)]
    for index in odd:
        items[index] = torch.full((2, i), index).mT if (i := index % 4) else torch.full((3,), index)
    assert same(list(Ragged(items)), items)
    items[2500] = items[2500].float()
    with pytest.raises(BadInput, match="item 2500 cannot be stored: it has float32 values"):
        Ragged(items)


@pytest.mark.parametrize(
    "odd",
    [
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j], requires_grad=True),
        torch.tensor([[1 + 2j, 3 - 4j], [0j, 1j]])[:, 1],
        torch.empty(0, dtype=torch.complex64),
        torch.nn.Parameter(torch.tensor([5j])),
    ],
)
def test_a_block_with_a_tensor_that_is_not_its_plain_bytes(odd: torch.Tensor, tmp_path: Path) -> None:
    items = [torch.tensor([1j]), odd, torch.tensor([2j])]
    expected = [item.detach().resolve_conj() for item in items]
    assert same(list(Ragged(items)), expected)
    assert same(list(Ragged.write(tmp_path / "x", items)), expected)


def test_a_block_with_a_negative_view() -> None:
    negative = torch._neg_view(torch.ones(2))  # contiguous, and its bytes say 1
    assert [item.tolist() for item in Ragged([torch.zeros(1), negative])] == [[0], [-1, -1]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_block_with_a_nested_tensor_is_refused() -> None:
    with pytest.raises(BadInput, match=r"item 1 cannot be stored: .* convert it to a dense one"):
        Ragged([torch.ones(2), torch.nested.nested_tensor([torch.ones(1)])])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_block_of_types_without_arrays_is_hashed_as_it_is_written(dtype: torch.dtype, tmp_path: Path) -> None:
    items = [torch.arange(i % 5).to(dtype) for i in range(1500)]
    Ragged.write(tmp_path / "x", items)
    assert same(list(Ragged.open(tmp_path / "x", verify=True)), items)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([torch.ones(1), torch.ones(2).to_sparse()], "item 1 cannot be stored: .* convert it to a dense one"),
        ([torch.ones(1), torch.ones(1, dtype=torch.int64)], "item 1 cannot be stored: it has int64 values"),
        ([torch.ones(1), "text"], "item 1 .* it has a str, expected float32 values"),
        ([(torch.ones(1),), torch.ones(1)], "item 1 .* it is a value of one value|item 1 .* it is a value of"),
        ([{"a": 1}, {"b": 1}], "item 1 .* it is a dict of b, expected a dict of a"),
        ([[1, 2]], "item 0 .* it has a list; an item must be a tensor, an array"),
        ([{3: 1}], "a dict item needs str keys, found 3"),
        ([{}], "no fields"),
        ([()], "no fields"),
        ([None], "it has a NoneType"),
        ([torch.ones(2).to_sparse()], "convert it to a dense one"),
        ([np.array(["x"])], "which torch does not support"),
        ([2**70], "does not fit in 64 bits"),
        ([(1, (2, 3))], "it has a tuple"),
    ],
)
def test_refused_items(items: list[Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Ragged(items)


def test_refused_requests() -> None:
    ragged = Ragged([torch.ones(1), torch.ones(2, 2)])
    with pytest.raises(BadInput, match="unknown kind of batch 'pading'; did you mean 'padded'"):
        ragged.batched("pading")
    with pytest.raises(TypeError, match="expected a number, a slice, a list of numbers or a mask"):
        ragged["first"]
    with pytest.raises(TypeError, match="expected a number, a slice"):
        ragged[[0.5]]
    with pytest.raises(BadInput, match="numbers of dimensions cannot be padded"):
        ragged.gather([0, 1], "padded")


def test_unusual_tensors() -> None:
    odd = [torch.ones(2, requires_grad=True), torch.arange(4.0)[::2], torch.ones(3).neg()]
    assert same(list(Ragged(odd)), [tensor.detach() for tensor in odd])
    assert same(Ragged([torch.tensor([1 + 2j]).conj()])[0], torch.tensor([1 - 2j]))
    backwards = np.arange(4)[::-1]
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert [item.tolist() for item in Ragged([backwards, frozen])] == [[3, 2, 1, 0], [0, 1, 2]]
    assert Ragged([np.array([1, 2], dtype=">i4")])[0].tolist() == [1, 2]


def test_in_a_stock_loader() -> None:
    ragged = Ragged([(torch.full((i % 3,), i), i) for i in range(10)]).batched("padded")
    batches = list(DataLoader(ragged, batch_size=4, collate_fn=ragged.collate))
    assert [number for _, numbers in batches for number in numbers.tolist()] == list(range(10))
    assert batches[0][0].lengths.tolist() == [0, 1, 2, 0]
    dense = Ragged([torch.full((3,), i) for i in range(10)])
    assert next(iter(DataLoader(dense, batch_size=5))).shape == (5, 3)
