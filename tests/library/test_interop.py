"""Masks there and back between the conventions of PyTorch and ours."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from attention_lib.interop import (
    from_key_padding_mask,
    from_mha_mask,
    from_sdpa_mask,
    to_key_padding_mask,
    to_mha_mask,
    to_sdpa_mask,
)
from attention_lib.masks import causal_mask, padding_mask

FORMS = st.sampled_from([None, torch.float16, torch.bfloat16, torch.float64])
SIZES = st.lists(st.integers(0, 4), min_size=4, max_size=4)


def coin(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) > 0.4


def meaning(written, blocked):
    """What a mask of PyTorch's lets through."""
    if written.dtype == torch.bool:
        return ~written if blocked else written
    assert ((written == 0) | (written == -math.inf)).all()
    return written == 0


@given(st.integers(0, 9999), SIZES, FORMS)
def test_masks_go_there_and_back(seed, sizes, dtype):
    B, H, Tq, Tk = sizes[0], max(sizes[1], 1), sizes[2], sizes[3]
    full, rows = coin(seed, B, H, Tq, Tk), coin(seed, B, 1, Tk)
    ways = [  # ours, written, whether True blocks there, read
        (full, to_sdpa_mask(full, dtype=dtype), False, from_sdpa_mask),
        (rows, to_key_padding_mask(rows, dtype=dtype), True,
         from_key_padding_mask),
    ]  # fmt: skip
    if B * H:
        flat = full[0, 0]
        ways.append(
            (flat, to_mha_mask(flat, dtype=dtype), True, from_mha_mask)
        )
    ways.append(
        (
            full,
            to_mha_mask(full, num_heads=H, dtype=dtype),
            True,
            lambda written: from_mha_mask(written, num_heads=H),
        )
    )
    for mask, written, blocked, read in ways:
        assert written.dtype == (dtype or torch.bool)
        back = read(written)
        assert torch.equal(back, mask)
        kept = meaning(written, blocked)
        assert torch.equal(kept.flatten(), mask.flatten())
    assert torch.equal(rows, coin(seed, B, 1, Tk))


@given(st.integers(0, 9999), SIZES, FORMS)
def test_one_row_for_all_queries_is_written_out(seed, sizes, dtype):
    B, H, Tq, Tk = sizes[0], max(sizes[1], 1), sizes[2], sizes[3]
    rows = coin(seed, B, 1, Tk)
    options = {"num_heads": H, "query_length": Tq, "dtype": dtype}
    written = to_mha_mask(rows, **options)
    assert written.shape == (B * H, Tq, Tk)
    assert torch.equal(written, to_mha_mask(rows[:, None], **options))
    back = from_mha_mask(written, num_heads=H)
    assert torch.equal(back, rows[:, None].expand(B, H, Tq, Tk))
    padding = to_key_padding_mask(rows[:, None], dtype=dtype)
    assert torch.equal(from_key_padding_mask(padding), rows)


def test_the_heads_of_one_sample_stay_together():
    """CLIP4Clip #22: repeat instead of repeat_interleave."""
    mask = padding_mask([2, 1], 2, side="left")
    written = to_mha_mask(mask, num_heads=2, query_length=1)
    assert written[:, 0].int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 0]]


def test_pytorch_reads_every_form_alike():
    layer = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    padding, causal = padding_mask([3, 5]), causal_mask(5)
    expected, _ = layer(
        x, x, x, attn_mask=to_mha_mask(padding & causal, num_heads=3)
    )
    query, key, value = torch.randn(3, 2, 3, 5, 6, dtype=torch.float64)
    both = (padding & causal)[:, None]
    kernel = F.scaled_dot_product_attention(query, key, value, attn_mask=both)
    for dtype in (None, torch.float64):
        found, _ = layer(
            x, x, x,
            attn_mask=to_mha_mask(causal, dtype=dtype),
            key_padding_mask=to_key_padding_mask(padding, dtype=dtype),
        )  # fmt: skip
        torch.testing.assert_close(found, expected)
        written = to_sdpa_mask(both, dtype=dtype)
        found = F.scaled_dot_product_attention(
            query, key, value, attn_mask=written
        )
        torch.testing.assert_close(found, kernel)
    alone = slice(0, 1), slice(0, 3)
    short = x[alone]
    row, _ = layer(short, short, short, attn_mask=to_mha_mask(causal_mask(3)))
    torch.testing.assert_close(expected[alone], row)


@pytest.mark.parametrize(
    "read", [from_sdpa_mask, from_key_padding_mask, from_mha_mask]
)
def test_masks_are_read_where_there_are_no_values(read):
    assert read(torch.empty(2, 3, device="meta")).shape[-1] == 3
    rows = torch.tensor([[[0.0, -math.inf]], [[0.0, 0.0]]])
    mapped = torch.vmap(read)(rows)
    assert torch.equal(mapped, torch.stack([read(row) for row in rows]))
