"""Masks have one meaning: boolean, True = may be attended."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from attention_lib.masks import (
    causal_mask,
    from_attention_mask,
    padding_mask,
)


@given(
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(0, 2),
    st.sampled_from([list, torch.tensor]),
)
def test_padding_keeps_the_real_tokens_on_the_other_side(lengths, spare, kind):
    Tk = max(lengths, default=0) + spare
    given_in = kind(lengths) if lengths else lengths
    for side in ("right", "left"):
        mask = padding_mask(given_in, Tk, side=side)
        assert mask.dtype == torch.bool
        assert mask.shape == (len(lengths), 1, Tk)
        for row, length in zip(mask[:, 0], lengths, strict=True):
            real = row[:length] if side == "right" else row[Tk - length :]
            assert real.all()
            assert row.sum() == length
    longest = padding_mask(given_in)
    assert longest.shape[-1] == max(lengths, default=0)


def test_lengths_of_any_integer_type_and_none_at_all():
    for dtype in (torch.uint8, torch.int32, torch.int64):
        lengths = torch.tensor([1, 2], dtype=dtype)
        assert padding_mask(lengths, 2).int().tolist() == [[[1, 0]], [[1, 1]]]
    assert padding_mask(torch.tensor([], dtype=torch.long)).shape == (0, 1, 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_ones_that_keep_become_a_mask_for_each_sample(dtype):
    ones = torch.tensor([[0, 1, 1], [1, 1, 1]]).to(dtype)
    kept = ones.clone()
    mask = from_attention_mask(ones)
    assert torch.equal(mask, padding_mask([2, 3], side="left"))
    assert torch.equal(ones, kept)
    mask[0] = False  # a mask of its own
    assert dtype == torch.bool or torch.equal(ones, kept)
    assert from_attention_mask(ones[:0]).shape == (0, 1, 3)


@given(
    st.integers(0, 5),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(-6, 6),
)
def test_query_i_sees_the_keys_up_to_i_plus_offset(Tq, Tk, offset):
    mask = causal_mask(Tq, Tk, offset=offset)
    Tk = Tq if Tk is None else Tk
    shift = Tk - Tq if offset is None else offset
    assert mask.dtype == torch.bool
    assert mask.shape == (Tq, Tk)
    for i, j in np.ndindex(Tq, Tk):
        assert mask[i, j] == (j <= i + shift)


def test_masks_combine_with_and():
    both = padding_mask([3, 1], 4) & causal_mask(2, 4)
    assert both.int().tolist() == [
        [[1, 1, 1, 0], [1, 1, 1, 0]],
        [[1, 0, 0, 0], [1, 0, 0, 0]],
    ]


def everything(lengths, ones):
    return (
        padding_mask(lengths, ones.shape[1], side="left")
        & causal_mask(ones.shape[1], device=ones.device)
        & from_attention_mask(ones)
    )


def test_masks_are_built_where_there_are_no_values():
    lengths, ones = torch.tensor([1, 3]), torch.ones(2, 3)
    expected = everything(lengths, ones)
    mapped = torch.vmap(lambda n, row: everything(n[None], row[None])[0])
    assert torch.equal(mapped(lengths, ones), expected)
    shape = everything(lengths.to("meta"), ones.to("meta")).shape
    assert shape == (2, 3, 3)
    with FakeTensorMode():
        lengths = torch.empty(2, dtype=torch.long)
        assert everything(lengths, torch.empty(2, 3)).shape == (2, 3, 3)


@pytest.mark.plain
def test_masks_compile_into_one_graph():
    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True, backend="eager")
    for T in (3, 5):
        inputs = torch.tensor([1, 3]), torch.ones(2, T)
        assert torch.equal(compiled(*inputs), everything(*inputs))
