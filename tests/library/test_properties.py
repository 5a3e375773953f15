"""Every way to attend against the oracle, whatever tensors come in.

Numbers, types, masks, empty axes and memory layouts (transposed, sliced,
expanded, with gaps) are drawn; what must come out is what
:mod:`attention_lib.reference` computes in float64 from the same numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import attention_lib as lib
from attention_lib import reference

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FEW = settings(max_examples=40)


@st.composite
def layouts(draw, tensor):
    """The same numbers, lying in memory in some other way."""
    way = draw(st.sampled_from(("plain", "turned", "gaps", "offset")))
    if way == "turned" and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    if way == "gaps":
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    if way == "offset":
        return torch.cat([tensor[:1], tensor])[len(tensor[:1]) :]
    return tensor


@st.composite
def numbers(draw, shape, dtype):
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    values = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    tensor = values.to(dtype)
    if shape and shape[0] > 1 and draw(st.booleans()):
        tensor = tensor[:1].expand(shape)  # one row in memory, many to see
    else:
        tensor = draw(layouts(tensor))
    return tensor


@st.composite
def problems(draw):
    """Query, key, value and a mask, or none, that fit together."""
    size = st.integers(0, 4)
    leading = tuple(draw(st.lists(size, max_size=2)))
    queries, keys, width, value_width = (draw(size) for _ in range(4))
    dtype = draw(st.sampled_from(DTYPES))
    query = draw(numbers((*leading, queries, max(1, width)), dtype))
    key = draw(numbers((*leading, keys, max(1, width)), dtype))
    value = draw(numbers((*leading, keys, value_width), dtype))
    mask = None
    if draw(st.booleans()):
        axes = [draw(st.sampled_from((1, n))) for n in leading]
        rows = draw(st.sampled_from((1, queries)))
        shape = (*axes, rows, draw(st.sampled_from((1, keys))))
        shape = shape[draw(st.integers(0, len(leading))) :]
        seed = draw(st.integers(0, 2**31))
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(shape, generator=generator) < 0.6
        mask = draw(layouts(mask))
    return query, key, value, mask


def wide(tensor):
    return tensor.detach().double().numpy()


def expected(query, key, value, mask, scale=None):
    keep = None if mask is None else mask.numpy()
    return reference.attention(
        wide(query), wide(key), wide(value), keep, scale
    )


def assert_close(result, wanted, dtype):
    precision = {torch.float64: 1e-12, torch.float32: 2e-5}
    precision |= {torch.float16: 4e-3, torch.bfloat16: 3e-2}
    scale = 1.0 + np.abs(wanted).max(initial=0.0)
    assert result.shape == wanted.shape
    error = np.abs(wide(result) - wanted).max(initial=0.0)
    assert error <= precision[dtype] * scale


WAYS = {
    "explicit": lambda q, k, v, m: lib.scaled_dot_product_attention(
        q, k, v, mask=m
    ),
    "fused": lambda q, k, v, m: lib.scaled_dot_product_attention(
        q, k, v, mask=m, need_weights=False
    ),
    "attend": lambda q, k, v, m: lib.attend(
        q, k, v, score=lib.scaled_dot_score, mask=m
    ),
    "blocks of two": lambda q, k, v, m: (
        lib.blockwise_attention(q, k, v, mask=m, block_size=2),
        None,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@FEW
@given(problem=problems())
def test_any_tensors_give_what_the_oracle_gives(way, problem):
    query, key, value, mask = problem
    before = [part.clone() for part in problem if part is not None]
    context, weights = WAYS[way](query, key, value, mask)
    assert context.dtype == value.dtype
    wanted_context, wanted_weights = expected(query, key, value, mask)
    assert_close(context, wanted_context, query.dtype)
    if weights is not None:
        assert_close(weights, wanted_weights, query.dtype)
    after = [part for part in problem if part is not None]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("scale", [None, 1.0, 0.0, -0.7])
@FEW
@given(problem=problems())
def test_any_scale_is_that_of_the_oracle(scale, problem):
    query, key, value, mask = problem
    context, _ = lib.scaled_dot_product_attention(
        query, key, value, mask=mask, scale=scale
    )
    wanted, _ = expected(query, key, value, mask, scale)
    assert_close(context, wanted, query.dtype)


@FEW
@given(problem=problems(), axis=st.integers(-1, 0))
def test_a_softmax_over_any_layout_is_that_of_the_oracle(problem, axis):
    query, key, _, mask = problem
    scores = (query @ key.mT).contiguous().mT.contiguous().mT
    keep = None if mask is None else mask.numpy()
    if scores.isfinite().all():
        weights = lib.masked_softmax(scores, mask, dim=axis)
        wanted = reference.softmax(wide(scores), keep, axis=axis)
        assert_close(weights, wanted, scores.dtype)


@FEW
@given(
    sizes=st.tuples(*[st.integers(0, 4)] * 3),
    heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)]),
    seed=st.integers(0, 2**31),
    masked=st.booleans(),
)
def test_a_layer_is_the_oracle_between_its_projections(
    sizes, heads, seed, masked
):
    batch, queries, keys = sizes
    num_heads, num_kv_heads = heads
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    layer = lib.MultiHeadAttention(8, num_heads, num_kv_heads=num_kv_heads)
    layer = layer.double()
    query, memory = draw(batch, queries, 8), draw(batch, keys, 8)
    mask = draw(batch, 1, queries, keys) > -0.5 if masked else None
    output, weights = layer(query, memory, mask=mask, need_weights=True)

    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    parts = []
    for project, source in zip(
        projections, (query, memory, memory), strict=True
    ):
        features = wide(project(source))
        count = features.shape[-1] // layer.d_head
        shape = (*features.shape[:2], count, layer.d_head)
        split = np.moveaxis(features.reshape(shape), 2, 1)
        parts.append(np.repeat(split, num_heads // count, axis=1))
    keep = None if mask is None else mask.numpy()
    context, rows = reference.attention(*parts, keep)
    merged = np.moveaxis(context, 1, 2).reshape(batch, queries, 8)
    wanted = nn.functional.linear(
        torch.from_numpy(merged),
        layer.output_proj.weight,
        layer.output_proj.bias,
    )
    assert_close(weights, rows, torch.float64)
    assert_close(output, wide(wanted), torch.float64)


@FEW
@given(
    lengths=st.lists(st.integers(0, 5), max_size=4),
    spare=st.integers(0, 2),
    shape=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    offset=st.none() | st.integers(-6, 6),
)
def test_masks_are_what_their_sentence_says(lengths, spare, shape, offset):
    longest = max(lengths, default=0) + spare
    real = lib.padding_mask(lengths, longest)
    said = [[[j < n for j in range(longest)]] for n in lengths]
    assert real.tolist() == said
    queries, keys = shape
    shift = keys - queries if offset is None else offset
    seen = lib.causal_mask(queries, keys, offset=offset)
    assert seen.shape == shape
    assert seen.tolist() == [
        [j <= i + shift for j in range(keys)] for i in range(queries)
    ]
