"""Masks: one meaning inside the library, two conventions outside."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from attention_lib.masks import (
    causal_mask,
    from_key_padding_mask,
    from_mha_mask,
    from_sdpa_mask,
    padding_mask,
    to_key_padding_mask,
    to_mha_mask,
    to_sdpa_mask,
)

FORMS = [None, torch.float16, torch.bfloat16, torch.float32, torch.float64]
sizes = st.integers(0, 4)
seeds = st.integers(0, 10_000)


GOLDEN = json.loads(
    (Path(__file__).parents[1] / "cases" / "golden.json").read_text("utf-8")
)["cases"]


def random_mask(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) > 0.4


# --- padding ---------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(0, 3))
def test_padding_keeps_exactly_the_first_tokens(lengths, spare):
    width = max(lengths, default=0) + spare
    mask = padding_mask(lengths, width)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(lengths), 1, width)
    assert mask.tolist() == [
        [[position < length for position in range(width)]]
        for length in lengths
    ]


def test_the_first_pad_is_not_kept():
    """ajhalthor/Transformer-Neural-Network #15."""
    assert padding_mask([2], 4).tolist() == [[[True, True, False, False]]]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_the_longest_sequence_sets_the_width(lengths):
    assert padding_mask(lengths).shape[-1] == max(lengths)
    assert torch.equal(
        padding_mask(lengths), padding_mask(torch.tensor(lengths))
    )


def test_no_sequence_at_all_is_a_batch_of_nothing():
    for lengths in ([], torch.tensor([], dtype=torch.long)):
        assert padding_mask(lengths).shape == (0, 1, 0)
        assert padding_mask(lengths, 3).shape == (0, 1, 3)


def test_padding_on_the_left_keeps_the_last_tokens():
    mask = padding_mask([1, 3], 4, side="left")
    assert mask.int().tolist() == [[[0, 0, 0, 1]], [[0, 1, 1, 1]]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_lengths_of_any_integer_type(dtype):
    lengths = torch.tensor([1, 2], dtype=dtype)
    assert padding_mask(lengths, 2).int().tolist() == [[[1, 0]], [[1, 1]]]


@pytest.mark.plain
@pytest.mark.parametrize(
    ("lengths", "options", "error", "words"),
    [
        ([1.0, 2.0], {}, TypeError, "lengths must hold integers"),
        ([True], {}, TypeError, "lengths must hold integers"),
        (torch.tensor([True, False]), {}, TypeError, "a mask instead of"),
        (torch.tensor([1.0]), {}, TypeError, "lengths must hold integers"),
        (torch.tensor([[1, 2]]), {}, ValueError, r"\(1, 2\)"),
        (torch.tensor(3), {}, ValueError, "one-dimensional"),
        ([3, -1], {}, ValueError, "lengths must be at least 0, got -1"),
        ([3, 5], {"max_length": 4}, ValueError, "reach 5.*max_length=4"),
        ([3], {"max_length": -1}, ValueError, "max_length .* at least 0"),
        ([3], {"max_length": 3.0}, TypeError, "max_length must be an int"),
        ([3], {"max_length": True}, TypeError, "max_length must be an int"),
        ([3], {"side": "middle"}, ValueError, "side must be"),
    ],
)
def test_bad_lengths_are_refused_by_name(lengths, options, error, words):
    with pytest.raises(error, match=words):
        padding_mask(lengths, **options)


# --- causal ----------------------------------------------------------------


@given(sizes, sizes, st.none() | st.integers(-5, 5))
def test_query_i_sees_keys_up_to_i_plus_offset(queries, keys, offset):
    mask = causal_mask(queries, keys, offset=offset)
    if offset is None:
        offset = keys - queries
    assert mask.dtype == torch.bool
    assert mask.shape == (queries, keys)
    for i in range(queries):
        for j in range(keys):
            assert mask[i, j] == (j <= i + offset)


def test_square_masks_keep_the_diagonal():
    """pytorch/tutorials #2250."""
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@given(st.integers(0, 5), st.integers(1, 4))
def test_the_rows_of_a_cached_step_are_the_last_rows(cached, new):
    """hyprstream #1521: one mask, whether computed in one go or in steps."""
    whole = causal_mask(cached + new)
    assert torch.equal(causal_mask(new, cached + new), whole[cached:])


def test_a_single_query_after_a_cache_sees_every_key():
    assert causal_mask(1, 4).all()


@pytest.mark.plain
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((-1,), {}, ValueError, "query_length must be at least 0, got -1"),
        ((1, -2), {}, ValueError, "key_length must be at least 0, got -2"),
        ((1.5,), {}, TypeError, "query_length must be an int, got 1.5"),
        ((True,), {}, TypeError, "query_length must be an int, got True"),
        ((2, "3"), {}, TypeError, "key_length must be an int, got '3'"),
        ((2,), {"offset": 0.5}, TypeError, "offset must be an int"),
        ((2,), {"offset": False}, TypeError, "offset must be an int"),
    ],
)
def test_bad_sizes_are_refused_by_name(arguments, options, error, words):
    with pytest.raises(error, match=words):
        causal_mask(*arguments, **options)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), sizes)
def test_masks_combine_with_and(lengths, queries):
    both = padding_mask(lengths, 4) & causal_mask(queries, 4)
    assert both.shape == (len(lengths), queries, 4)
    for sample, length in enumerate(lengths):
        alone = causal_mask(queries, 4)
        alone[:, length:] = False
        assert torch.equal(both[sample], alone)


@pytest.mark.parametrize(
    "case",
    [c for c in GOLDEN if c["op"] in ("causal_mask", "combine_masks")],
    ids=lambda case: case["id"],
)
def test_other_libraries_build_the_same_masks(case):
    """They align causal masks at the upper left: offset 0."""
    inputs, params = case["inputs"], case["params"]
    expected = torch.tensor(case["expected"]["mask"], dtype=torch.bool)
    queries, keys = expected.shape[-2:]
    mask = torch.ones(expected.shape, dtype=torch.bool)
    if "align" in params or "causal" in inputs:
        mask = mask & causal_mask(queries, keys, offset=0)
    if "key_lengths" in inputs:
        mask = mask & padding_mask(inputs["key_lengths"], keys)
    if "key_mask" in inputs:
        mask = mask & torch.tensor(inputs["key_mask"])[:, None]
    if "query_mask" in inputs:
        mask = mask & torch.tensor(inputs["query_mask"])[:, :, None]
    assert torch.equal(mask, expected)


@pytest.mark.plain
def test_masks_compile_into_one_graph():
    def both(lengths, hidden):
        tokens = hidden.shape[1]
        mask = padding_mask(lengths, tokens) & causal_mask(tokens)
        return to_mha_mask(mask, num_heads=2, dtype=torch.float32)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for tokens in (3, 5):
        lengths, hidden = torch.tensor([1, 3]), torch.zeros(2, tokens, 1)
        assert torch.equal(compiled(lengths, hidden), both(lengths, hidden))


# --- converters ------------------------------------------------------------


@given(seeds, st.lists(sizes, max_size=4), st.sampled_from(FORMS))
def test_sdpa_masks_there_and_back(seed, shape, dtype):
    mask = random_mask(seed, *shape)
    written = to_sdpa_mask(mask, dtype=dtype)
    assert written.dtype == (dtype or torch.bool)
    assert torch.equal(from_sdpa_mask(written), mask)


@given(seeds, sizes, sizes, st.sampled_from(FORMS))
def test_key_padding_there_and_back(seed, batch, keys, dtype):
    mask = random_mask(seed, batch, 1, keys)
    written = to_key_padding_mask(mask, dtype=dtype)
    assert written.shape == (batch, keys)
    assert written.dtype == (dtype or torch.bool)
    assert torch.equal(from_key_padding_mask(written), mask)
    assert torch.equal(to_key_padding_mask(mask[:, None]), ~mask[:, 0])


@given(seeds, sizes, sizes, st.sampled_from(FORMS))
def test_two_dimensional_mha_masks_there_and_back(seed, queries, keys, dtype):
    mask = random_mask(seed, queries, keys)
    written = to_mha_mask(mask, dtype=dtype)
    assert written.dtype == (dtype or torch.bool)
    assert torch.equal(from_mha_mask(written), mask)


@given(
    seeds,
    sizes,
    st.integers(1, 3),
    sizes,
    sizes,
    st.booleans(),
    st.sampled_from(FORMS),
)
def test_batched_mha_masks_there_and_back(
    seed, batch, heads, queries, keys, shared, dtype
):
    mask = random_mask(seed, batch, 1 if shared else heads, queries, keys)
    written = to_mha_mask(mask, num_heads=heads, dtype=dtype)
    assert written.shape == (batch * heads, queries, keys)
    back = from_mha_mask(written, num_heads=heads)
    assert torch.equal(back, mask.expand_as(back))
    if shared:
        again = to_mha_mask(mask[:, 0], num_heads=heads, dtype=dtype)
        assert torch.equal(again, written)


@given(seeds, sizes, sizes, st.sampled_from(FORMS))
def test_masks_of_torch_survive_the_way_through_ours(
    seed, queries, keys, dtype
):
    theirs = ~random_mask(seed, 6, queries, keys)
    if dtype is not None:
        theirs = torch.zeros(theirs.shape, dtype=dtype).masked_fill(
            theirs, -math.inf
        )
    ours = from_mha_mask(theirs, num_heads=3)
    back = to_mha_mask(ours, num_heads=3, dtype=dtype)
    assert torch.equal(back, theirs)


def test_the_heads_of_one_sample_stay_together():
    """CLIP4Clip #22: repeat instead of repeat_interleave."""
    mask = padding_mask([2, 1], 2).flip(-1)
    written = to_mha_mask(mask, num_heads=2, query_length=1)
    assert written[:, 0].int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 0]]


def test_a_torch_layer_reads_both_forms_alike():
    layer = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    padding, causal = padding_mask([3, 5]), causal_mask(5)

    def run(**masks):
        return layer(x, x, x, need_weights=False, **masks)[0]

    expected = run(
        attn_mask=to_mha_mask(padding & causal, num_heads=3),
    )
    for dtype in (None, torch.float64):
        got = run(
            attn_mask=to_mha_mask(causal, dtype=dtype),
            key_padding_mask=to_key_padding_mask(padding, dtype=dtype),
        )
        torch.testing.assert_close(got, expected)
    alone = layer(x[:1, :3], x[:1, :3], x[:1, :3], need_weights=False,
                  attn_mask=to_mha_mask(causal_mask(3)))[0]  # fmt: skip
    torch.testing.assert_close(expected[:1, :3], alone)


def test_the_kernel_reads_both_forms_alike():
    query, key, value = torch.randn(3, 2, 3, 4, 6, dtype=torch.float64)
    mask = (padding_mask([2, 4]) & causal_mask(4))[:, None]
    results = [
        F.scaled_dot_product_attention(
            query, key, value, attn_mask=to_sdpa_mask(mask, dtype=dtype)
        )
        for dtype in (None, torch.float64)
    ]
    torch.testing.assert_close(*results)


@pytest.mark.plain
@pytest.mark.parametrize("write", [to_sdpa_mask, to_key_padding_mask])
def test_writers_want_booleans_and_say_how_to_get_them(write):
    with pytest.raises(TypeError, match=r"mask\.bool\(\).*from_sdpa_mask"):
        write(torch.ones(1, 1, 2))
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        write([[True]])


@pytest.mark.plain
def test_only_floating_types_are_additive():
    with pytest.raises(TypeError, match="dtype must be floating-point"):
        to_sdpa_mask(torch.ones(2, dtype=torch.bool), dtype=torch.int64)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("read", "name"),
    [
        (from_sdpa_mask, "attn_mask"),
        (from_mha_mask, "attn_mask"),
        (from_key_padding_mask, "key_padding_mask"),
    ],
)
@pytest.mark.parametrize("number", [-1e9, 1.0, math.inf, math.nan, -65504.0])
def test_a_float_mask_of_other_numbers_is_no_mask(read, name, number):
    """pytorch/pytorch #21518: 0/1 floats are added, not a mask."""
    with pytest.raises(ValueError, match=f"{name} holds values other than"):
        read(torch.tensor([[0.0, number]]))


@pytest.mark.plain
@pytest.mark.parametrize("read", [from_sdpa_mask, from_mha_mask])
def test_readers_refuse_integers_and_lists(read):
    with pytest.raises(TypeError, match=r"attn_mask.*torch\.int64"):
        read(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"attn_mask.*list"):
        read([[True]])


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: to_key_padding_mask(m(2, 3)), r"\(2, 3\)"),
        (lambda m: to_key_padding_mask(m(2, 3, 4)), r"\(B, 1, Tk\)"),
        (lambda m: to_key_padding_mask(m(2, 2, 1, 4)), r"\(2, 2, 1, 4\)"),
        (lambda m: from_key_padding_mask(m(2, 1, 3)), r"\(2, 1, 3\)"),
        (lambda m: to_mha_mask(m(3)), r"2, 3 or 4 axes"),
        (lambda m: to_mha_mask(m(2, 3, 4)), "num_heads is needed"),
        (lambda m: to_mha_mask(m(2, 3, 3, 4), num_heads=2), "num_heads=2"),
        (lambda m: to_mha_mask(m(3, 4), query_length=2), "query_length=2"),
        (lambda m: from_mha_mask(m(6, 2, 2)), "num_heads is needed"),
        (lambda m: from_mha_mask(m(6, 2, 2), num_heads=4), "num_heads=4"),
        (lambda m: from_mha_mask(m(6, 2, 2), num_heads=0), "num_heads.*0"),
        (lambda m: from_mha_mask(m(6, 2, 2, 2), num_heads=2), r"\(6, 2, 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(lambda *shape: torch.ones(shape, dtype=torch.bool))


def test_converters_leave_their_input_alone():
    mask = random_mask(0, 2, 1, 3)
    kept = mask.clone()
    for dtype in FORMS:
        to_sdpa_mask(mask, dtype=dtype)
        to_key_padding_mask(mask, dtype=dtype)
        to_mha_mask(mask, num_heads=2, query_length=2, dtype=dtype)
    assert torch.equal(mask, kept)
