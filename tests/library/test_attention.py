"""What masked_softmax and attend promise, each promise as a test."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attention_lib import reference
from attention_lib.attention import _quick_softmax, attend, masked_softmax

HALVES = [torch.float16, torch.bfloat16]
INF = torch.inf


def dot(query, key):
    """A score that keeps the contract: float32 for half inputs."""
    if query.dtype in HALVES:
        query, key = query.float(), key.float()
    return query @ key.mT


def scaled_dot(query, key):
    return dot(query, key) / math.sqrt(query.shape[-1])


@st.composite
def tables(draw):
    """Scores of any size and a mask that broadcasts to them."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    scores *= draw(st.sampled_from([1e-3, 1.0, 30.0, 1e4, 1e30]))
    scores += draw(st.sampled_from([0.0, -2e6, 1e5]))
    first = draw(st.integers(0, len(shape) - 1))
    narrow = [draw(st.sampled_from([1, size])) for size in shape[first:]]
    mask = torch.rand(narrow, generator=generator) < 0.6
    return scores, draw(st.sampled_from([None, mask]))


@st.composite
def problems(draw):
    """Queries, keys, values and a mask; all sizes may differ or be 0."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    query_length, key_length = draw(st.tuples(*[st.integers(0, 4)] * 2))
    width, value_width = draw(st.tuples(*[st.integers(1, 5)] * 2))

    def normal(*shape):
        return torch.randn(
            *batch, *shape, generator=generator, dtype=torch.float64
        )

    mask = torch.rand(*batch, query_length, key_length, generator=generator)
    return (
        normal(query_length, width),
        normal(key_length, width),
        normal(key_length, value_width),
        draw(st.sampled_from([None, mask < 0.6])),
    )


def small(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


# --- masked_softmax: the numbers --------------------------------------------


@given(tables())
def test_weights_are_those_of_the_reference(table):
    scores, mask = table
    weights = masked_softmax(scores, mask)
    np.testing.assert_allclose(
        weights, reference.softmax(scores, mask), rtol=1e-12, atol=1e-15
    )


@given(tables())
def test_each_row_sums_to_one_or_has_nothing_to_attend_to(table):
    scores, mask = table
    weights = masked_softmax(scores, mask)
    keep = torch.ones_like(scores, dtype=torch.bool)
    keep = keep if mask is None else keep & mask
    torch.testing.assert_close(weights.sum(dim=-1), keep.any(dim=-1).double())
    assert (weights >= 0).all()
    assert (weights[~keep] == 0).all()


@given(tables(), st.sampled_from([math.nan, INF, 1e300, -1e300]))
def test_a_hidden_score_has_no_influence_whatever_it_is(table, garbage):
    scores, mask = table
    hidden = ~torch.ones_like(scores, dtype=torch.bool)
    hidden = hidden if mask is None else hidden | ~mask
    other = scores.masked_fill(hidden, garbage)
    assert torch.equal(
        masked_softmax(scores, mask), masked_softmax(other, mask)
    )


@given(tables())
def test_a_score_of_minus_infinity_counts_as_hidden(table):
    scores, mask = table
    hide = torch.zeros_like(scores, dtype=torch.bool)
    hide = hide if mask is None else hide | ~mask
    assert torch.equal(
        masked_softmax(scores.masked_fill(hide, -INF)),
        masked_softmax(scores, mask),
    )


def test_the_keys_are_the_last_axis():
    weights = masked_softmax(torch.tensor([[0.0, 1.7943]]))
    torch.testing.assert_close(
        weights, torch.tensor([[0.1425, 0.8575]]), atol=5e-5, rtol=0
    )


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_another_axis_is_that_axis_moved_last(dim):
    scores, mask = small(3, 4, 5), torch.rand(3, 4, 5) < 0.4
    moved = masked_softmax(scores.movedim(dim, -1), mask.movedim(dim, -1))
    torch.testing.assert_close(
        masked_softmax(scores, mask, dim=dim), moved.movedim(-1, dim)
    )


def test_the_mask_comes_before_the_division():
    keep = torch.tensor([True, True, False])
    assert masked_softmax(torch.zeros(3), keep).tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("size", [-2e6, -2e9, -3e38])
def test_hidden_keys_lose_even_to_very_negative_scores(size):
    keep = torch.tensor([True, True, False])
    weights = masked_softmax(torch.full((3,), size), keep)
    assert weights.tolist() == [0.5, 0.5, 0.0]


def test_true_means_may_be_attended():
    keep = torch.tensor([True, True, False])
    weights = masked_softmax(torch.zeros(3, dtype=torch.float64), keep)
    assert weights @ torch.tensor([1.0, 2, 9]).double() == 1.5


def test_a_score_that_is_nan_is_not_hidden_from_the_user():
    assert masked_softmax(torch.tensor([math.nan, 0.0])).isnan().all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0,)])
def test_empty_axes_are_kept(shape):
    mask = torch.ones(shape, dtype=torch.bool)
    assert masked_softmax(torch.zeros(shape)).shape == shape
    assert masked_softmax(torch.zeros(shape), mask).shape == shape


def test_a_mask_with_one_row_per_sample_is_not_taken_for_one_per_head():
    batch, heads = 2, 3
    keep = torch.ones(batch, 1, 1, 2, dtype=torch.bool)
    keep[1, ..., 1] = False
    weights = masked_softmax(torch.zeros(batch, heads, 2, 2), keep)
    assert (weights[0, :, :, 1] == 0.5).all()
    assert (weights[1, :, :, 1] == 0.0).all()


# --- masked_softmax: dead rows and gradients --------------------------------


def dead_row_inputs():
    minus = torch.tensor([[-INF, -INF], [1.0, -INF]])
    keep = torch.tensor([[False, False], [True, False]])
    yield "hidden by the mask", torch.zeros(2, 2), keep
    yield "of minus infinity", minus, None
    yield "hidden by both", minus, torch.tensor([[True, False], [True, True]])
    behind = torch.tensor([[math.nan, math.nan], [1.0, math.nan]])
    yield "with nan behind the mask", behind, keep


@pytest.mark.parametrize(
    ("scores", "mask"),
    [case[1:] for case in dead_row_inputs()],
    ids=[case[0] for case in dead_row_inputs()],
)
def test_a_dead_row_gets_zeros_and_finite_gradients(scores, mask):
    scores = scores.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "will be slow"
        with torch.autograd.detect_anomaly():
            weights = masked_softmax(scores, mask)
            (weights * torch.tensor([[2.0, 3.0], [5.0, 7.0]])).sum().backward()
    assert weights[0].tolist() == [0.0, 0.0]
    assert weights[1].sum() == 1.0
    assert (scores.grad[0] == 0).all()
    assert scores.grad.isfinite().all()


def test_a_dead_row_does_not_touch_the_gradients_of_others():
    scores = small(3, 4)
    keep = torch.ones(3, 4, dtype=torch.bool)
    keep[1] = False

    def gradient(scores, mask):
        scores = scores.clone().requires_grad_()
        masked_softmax(scores, mask).square().sum().backward()
        return scores.grad

    together = gradient(scores, keep)
    assert torch.equal(together[[0, 2]], gradient(scores[[0, 2]], None))


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_are_those_of_finite_differences(order):
    scores = small(3, 4).requires_grad_()
    keep = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    check = (
        torch.autograd.gradcheck
        if order == 1
        else (torch.autograd.gradgradcheck)
    )
    assert check(lambda s: masked_softmax(s, keep), (scores,))


def test_the_gradient_of_a_hidden_score_is_exactly_zero():
    scores = small(5, 6).requires_grad_()
    keep = torch.rand(5, 6) < 0.5
    masked_softmax(scores, keep).pow(3).sum().backward()
    assert (scores.grad[~keep] == 0).all()
    assert (scores.grad[keep] != 0).any()


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("dim", [-1, 0])
def test_masked_softmax_can_be_mapped_over_a_batch(dim, dead):
    scores, keep = small(3, 4, 5), torch.rand(3, 4, 5) < 0.7
    keep[0] &= not dead

    def run(scores, keep):
        return masked_softmax(scores, keep, dim=dim)

    mapped = torch.func.vmap(run)(scores, keep)
    alone = torch.stack(list(map(run, scores, keep)))
    torch.testing.assert_close(mapped, alone)


# --- masked_softmax: types, and leaving things alone ------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_half_scores_are_summed_in_float32(dtype):
    scores = small(4, 3000, dtype=torch.float32).mul(4).to(dtype)
    keep = torch.rand(4, 3000) < 0.9
    expected = masked_softmax(scores.float(), keep)
    weights = masked_softmax(scores, keep)
    assert weights.dtype == dtype
    assert torch.equal(weights, expected.to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_half_scores_can_be_masked(dtype):
    keep = torch.tensor([[True, False], [True, True], [False, False]])
    weights = masked_softmax(torch.zeros(3, 2, dtype=dtype), keep)
    assert weights.tolist() == [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_weights_come_in_the_type_of_the_scores(dtype):
    previous = torch.get_default_dtype()
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            weights = masked_softmax(torch.zeros(2, dtype=dtype))
        finally:
            torch.set_default_dtype(previous)
        assert weights.dtype == dtype


def test_neither_scores_nor_mask_are_written_to():
    scores, keep = torch.zeros(2, 3), torch.rand(2, 3) < 0.5
    before = scores.clone(), keep.clone()
    masked_softmax(scores, keep)
    assert torch.equal(scores, before[0])
    assert torch.equal(keep, before[1])


def test_expanded_and_transposed_tensors_are_fine():
    scores = small(3, 1).expand(3, 4).mT
    keep = torch.tensor([True, False, True]).expand(4, 3)
    np.testing.assert_allclose(
        masked_softmax(scores, keep), reference.softmax(scores, keep)
    )


def test_usual_masks_take_the_quick_way():
    """What it returns is compared elsewhere; here, that it returns."""
    scores = small(2, 3, 4).float()
    padding = torch.tensor([True, True, False, False])
    dead = torch.tensor([[True], [False], [True]]).expand(3, 4)
    for mask in (None, padding, dead, dead.expand(2, 3, 4)):
        assert _quick_softmax(scores, mask, -1) is not None
    for shape in [(4,), (1,), (3, 1)]:
        assert _quick_softmax(torch.randn(shape), None, -1) is not None


def test_what_the_quick_way_finds_is_the_answer(monkeypatch):
    found = torch.tensor([0.25, 0.75])
    monkeypatch.setattr(
        "attention_lib.attention._quick_softmax", lambda *_: found
    )
    assert masked_softmax(torch.zeros(2)) is found


@pytest.mark.parametrize(
    ("trained", "recorded"), [(True, True), (True, False), (False, True)]
)
def test_masked_scores_are_overwritten_if_nobody_needs_them(
    monkeypatch, trained, recorded
):
    """A training step needs them again; nobody else pays for a copy."""
    softmax, given = torch.softmax, []

    def spy(scores, dim, out=None):
        given.append(out is not None)
        return softmax(scores, dim, out=out)

    monkeypatch.setattr(torch, "softmax", spy)
    scores = torch.randn(3, 4, requires_grad=trained)
    with torch.set_grad_enabled(recorded):
        _quick_softmax(scores, torch.ones(3, 4, dtype=torch.bool).tril(), -1)
    assert given == [not (trained and recorded)]


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_does_not_lower_the_precision(dtype):
    scores, keep = small(3, 4, dtype=torch.float32), torch.rand(3, 4) < 0.7
    expected = masked_softmax(scores, keep)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(masked_softmax(scores, keep), expected)


# --- masked_softmax: what is refused, and in which words --------------------


@pytest.mark.plain
@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 2).tril(), torch.ones(2, dtype=torch.int64)],
    ids=["float", "integer"],
)
def test_a_mask_of_numbers_is_refused_and_told_how_to_convert(mask):
    with pytest.raises(TypeError, match=r"mask.bool\(\).*mask == 0.*lengths"):
        masked_softmax(torch.zeros(2, 2), mask)


@pytest.mark.plain
@pytest.mark.parametrize("mask", [[True, False], np.array([True, False])])
def test_a_mask_that_is_no_tensor_is_refused(mask):
    with pytest.raises(TypeError, match=r"mask must be.*torch.as_tensor"):
        masked_softmax(torch.zeros(2), mask)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("scores", "mask"),
    [
        ((2, 3), (2, 4)),
        ((2, 3), (3, 1)),
        ((1, 3), (2, 3)),
        ((3,), (1, 3)),
        ((2, 0), (2, 3)),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_both_shapes(scores, mask):
    with pytest.raises(ValueError, match="does not broadcast") as caught:
        masked_softmax(torch.zeros(scores), torch.ones(mask) > 0)
    assert str(scores) in str(caught.value)
    assert str(mask) in str(caught.value)


@pytest.mark.plain
def test_a_mask_on_another_device_is_refused():
    with pytest.raises(ValueError, match=r"mask is on meta.*on cpu"):
        masked_softmax(torch.zeros(2), torch.ones(2, device="meta") > 0)


@pytest.mark.plain
def test_scores_of_whole_numbers_are_refused():
    with pytest.raises(TypeError, match=r"scores.*int64.*scores.float\(\)"):
        masked_softmax(torch.tensor([1, 2]))


# --- attend: the formula -----------------------------------------------------


@given(problems())
def test_context_and_weights_are_those_of_the_reference(problem):
    *tensors, mask = problem
    context, weights = attend(*tensors, score=scaled_dot, mask=mask)
    expected = reference.attention(*tensors, mask)
    np.testing.assert_allclose(context, expected[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-10, atol=1e-12)


def test_any_callable_is_a_score():
    query, key, value = small(3, 4), small(5, 6), small(5, 2)
    layer = nn.Bilinear(4, 6, 1).double()

    def learned(query, key):
        pairs = query[:, None].expand(-1, 5, -1), key.expand(3, -1, -1)
        return layer(pairs[0].contiguous(), pairs[1].contiguous())[..., 0]

    scores = learned(query, key).detach()
    context, weights = attend(query, key, value, score=learned)
    np.testing.assert_allclose(weights.detach(), reference.softmax(scores))
    torch.testing.assert_close(context, weights @ value)


@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_keys_does_not_matter(problem, random):
    query, key, value, mask = problem
    order = list(range(key.shape[-2]))
    random.shuffle(order)
    context, weights = attend(query, key, value, score=dot, mask=mask)
    other, other_weights = attend(
        query,
        key[..., order, :],
        value[..., order, :],
        score=dot,
        mask=None if mask is None else mask[..., order],
    )
    torch.testing.assert_close(other, context)
    torch.testing.assert_close(other_weights, weights[..., order])


@given(problems())
def test_each_query_is_answered_as_if_it_were_alone(problem):
    query, key, value, mask = problem
    context, _ = attend(query, key, value, score=dot, mask=mask)
    for i in range(query.shape[-2]):
        alone, _ = attend(
            query[..., i : i + 1, :],
            key,
            value,
            score=dot,
            mask=None if mask is None else mask[..., i : i + 1, :],
        )
        torch.testing.assert_close(alone, context[..., i : i + 1, :])


@given(problems())
def test_a_context_never_leaves_the_range_of_the_values(problem):
    query, key, value, mask = problem
    if key.shape[-2] == 0:
        return
    context, weights = attend(query, key, value, score=dot, mask=mask)
    alive = weights.sum(dim=-1, keepdim=True) > 0
    low = value.amin(dim=-2, keepdim=True) - 1e-9
    high = value.amax(dim=-2, keepdim=True) + 1e-9
    inside = (low <= context) & (context <= high)
    assert (inside | ~alive).all()
    assert (context[~alive.expand_as(context)] == 0).all()


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_hidden_keys_change_nothing_not_even_gradients(batch):
    tensors = [small(*batch, 4, 3), small(*batch, 5, 3), small(*batch, 5, 2)]

    def run(extra):
        query, key, value = (t.clone().requires_grad_() for t in tensors)
        pads = (torch.full((*batch, extra, n), 1e3).double() for n in (3, 2))
        keep = torch.arange(5 + extra) < 5
        long_key, long_value = (
            torch.cat([t, pad], dim=-2)
            for t, pad in zip((key, value), pads, strict=True)
        )
        context, _ = attend(query, long_key, long_value, score=dot, mask=keep)
        context.square().sum().backward()
        return context, query.grad, key.grad, value.grad

    for short, padded in zip(run(0), run(3), strict=True):
        torch.testing.assert_close(short, padded)


def test_one_key_hands_over_its_value():
    value = small(2, 1, 5)
    context, weights = attend(small(2, 3, 4), small(2, 1, 4), value, score=dot)
    assert (weights == 1).all()
    torch.testing.assert_close(context, value.expand(2, 3, 5))


def test_a_query_with_no_key_to_attend_to_gets_zero():
    keep = torch.tensor([[True, True, False], [False] * 3])
    value = torch.tensor([[1.0], [2.0], [6.0]])
    query = torch.zeros(2, 4)
    context, weights = attend(
        query, torch.zeros(3, 4), value, score=dot, mask=keep
    )
    assert context.tolist() == [[1.5], [0.0]]
    assert weights.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("batch", "query_length", "key_length"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)]
)
def test_empty_batches_and_lengths_work(batch, query_length, key_length):
    query = small(batch, query_length, 5).requires_grad_()
    key, value = small(batch, key_length, 5), small(batch, key_length, 6)
    context, weights = attend(query, key, value, score=dot)
    assert context.shape == (batch, query_length, 6)
    assert weights.shape == (batch, query_length, key_length)
    assert (context == 0).all()
    context.sum().backward()
    assert (query.grad == 0).all()


def test_leading_axes_broadcast():
    query, key = small(2, 1, 3, 4), small(5, 6, 4)
    value = small(6, 7)
    context, weights = attend(query, key, value, score=dot)
    expected = reference.attention(query, key, value, scale=1.0)
    np.testing.assert_allclose(context, expected[0])
    np.testing.assert_allclose(weights, expected[1])


def test_gradients_of_attend_are_those_of_finite_differences():
    tensors = [small(2, 3, 2), small(2, 4, 2), small(2, 4, 3)]
    keep = torch.rand(2, 3, 4) < 0.6
    keep[0, 1] = False
    for tensor in tensors:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *qkv: attend(*qkv, score=scaled_dot, mask=keep), tensors
    )


def test_dead_rows_leave_all_gradients_finite():
    tensors = [small(2, 4, 3).requires_grad_() for _ in range(3)]
    keep = torch.ones(2, 4, 4, dtype=torch.bool).tril()
    keep[1, :, :2] = False
    context, _ = attend(*tensors, score=dot, mask=keep)
    assert (context[1, :2] == 0).all()
    context[:, 3].sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)


# --- attend: precision -------------------------------------------------------


def test_half_scores_do_not_overflow():
    full = torch.full((3, 80), 256.0, dtype=torch.float16)
    context, weights = attend(full, full, full, score=dot)
    assert context.dtype == weights.dtype == torch.float16
    assert (context == 256).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_half_inputs_are_summed_in_float32_and_returned_in_half(dtype):
    tensors = [
        small(2, 3, 8).to(dtype),
        small(2, 500, 8).to(dtype),
        small(2, 500, 4).to(dtype),
    ]
    context, weights = attend(*tensors, score=scaled_dot)
    exact = reference.attention(*(t.double() for t in tensors))
    assert context.dtype == weights.dtype == dtype
    for got, expected in zip((context, weights), exact, strict=True):
        rounded = torch.from_numpy(expected).to(dtype)
        torch.testing.assert_close(
            got, rounded, rtol=torch.finfo(dtype).eps, atol=1e-6
        )


def test_the_largest_half_value_survives_its_own_mean():
    value = torch.full((1000, 1), 65504.0, dtype=torch.float16)
    query = small(1, 4).half()
    context, _ = attend(query, small(1000, 4).half(), value, score=dot)
    assert context.item() == 65504.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_computes_scores_and_sums_in_float32(dtype):
    tensors = [small(2, 3, 64).to(dtype) for _ in range(3)]
    seen = []

    def score(query, key):
        scores = query @ key.mT / 8
        seen.append((query.dtype, scores.dtype))
        return scores

    expected = attend(*(t.float() for t in tensors), score=score)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context, weights = attend(*tensors, score=score)
    assert seen[-1] == (torch.float32, torch.float32)
    assert torch.equal(context, expected[0].to(dtype))
    assert torch.equal(weights, expected[1].to(dtype))


def test_autocast_lets_a_layer_in_float32_score_half_inputs():
    layer = nn.Linear(4, 6)
    query, key = small(3, 4).bfloat16(), small(5, 6).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, weights = attend(
            query, key, key, score=lambda q, k: layer(q) @ k.mT
        )
    scores = layer(query.float()) @ key.float().mT
    torch.testing.assert_close(weights, scores.softmax(-1).bfloat16())


def test_autocast_allows_inputs_of_different_precision():
    query, memory = small(3, 4).bfloat16(), small(5, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context, weights = attend(query, memory, memory, score=dot)
    assert (context.dtype, weights.dtype) == (torch.float32, torch.bfloat16)


def test_autocast_forgets_no_option():
    tensors = small(2, 3, 4), small(2, 5, 4), small(2, 5, 3)
    tensors = [tensor.float() for tensor in tensors]
    for options in ({"mask": torch.eye(3, 5).bool()}, {"dropout_p": 1.0}):
        expected = attend(*tensors, score=dot, **options)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = attend(*tensors, score=dot, **options)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


# --- attend: dropout ---------------------------------------------------------


def test_dropout_leaves_the_returned_weights_alone():
    tensors = small(2, 50, 4), small(2, 60, 4), small(2, 60, 3)
    plain, weights = attend(*tensors, score=dot)
    dropped, same = attend(*tensors, score=dot, dropout_p=0.4)
    assert torch.equal(weights, same)
    assert not torch.equal(plain, dropped)


def test_dropout_keeps_a_weight_divided_or_drops_it():
    query, key = small(40, 4), small(50, 4)
    eye = torch.eye(50, dtype=torch.float64)
    dropped, weights = attend(query, key, eye, score=dot, dropout_p=0.2)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.8)
    assert 0.75 < kept.double().mean() < 0.85


def test_dropout_of_everything_gives_zero():
    tensor = small(3, 3)
    context, _ = attend(tensor, tensor, tensor, score=dot, dropout_p=1.0)
    assert (context == 0).all()


# --- attend: leaving things alone, compiling ---------------------------------


def test_inputs_are_left_as_they_were():
    tensors = [small(3, 4) for _ in range(3)]
    keep = torch.rand(3, 3) < 0.5
    before = [t.clone() for t in (*tensors, keep)]
    attend(*tensors, score=dot, mask=keep, dropout_p=0.5)
    for tensor, old in zip((*tensors, keep), before, strict=True):
        assert torch.equal(tensor, old)


def test_attend_runs_on_any_device():
    tensors = [torch.zeros(2, 3, 4, device="meta") for _ in range(3)]
    keep = torch.ones(3, 3, device="meta", dtype=torch.bool)
    context, weights = attend(*tensors, score=dot, mask=keep)
    assert context.device.type == weights.device.type == "meta"


@pytest.mark.plain
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_attend_compiles_into_one_graph(autocast, dynamic):
    compiled = torch.compile(
        attend, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    keep = torch.rand(2, 3, 5) < 0.5
    keep[0, 0] = False
    data = [
        small(2, 3, 4, dtype=torch.float32),
        *(small(2, 5, 4, dtype=torch.float32) for _ in range(2)),
    ]

    def run(function):
        tensors = [t.clone().requires_grad_() for t in data]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            results = function(*tensors, score=scaled_dot, mask=keep)
        results[0].square().sum().backward()
        return [*results, *(t.grad for t in tensors)]

    eager, graph = run(attend), run(compiled)
    torch.testing.assert_close(graph[:2], eager[:2])
    # torch runs a compiled backward pass under the autocast of the forward.
    loose = {"rtol": 0.02, "atol": 0.02} if autocast else {}
    torch.testing.assert_close(graph[2:], eager[2:], **loose)


@pytest.mark.plain
@pytest.mark.parametrize("mask", [None, torch.tensor([[True, False, True]])])
def test_masked_softmax_compiles_into_one_graph(mask):
    compiled = torch.compile(
        masked_softmax, fullgraph=True, backend="aot_eager"
    )
    for scores in (small(2, 3), small(4, 3).half(), small(2, 3) * 1e30):
        torch.testing.assert_close(
            compiled(scores, mask), masked_softmax(scores, mask)
        )


# --- attend: what is refused, and in which words -----------------------------

OK = torch.zeros(2, 3)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"key": torch.zeros(5, 3), "value": torch.zeros(6, 3)},
            ValueError,
            r"same length.*key \(5, 3\) has 5.*value \(6, 3\) has 6",
        ),
        (
            {"query": torch.zeros(3)},
            ValueError,
            r"query must have at least two dimensions.*\(3,\)",
        ),
        (
            {"value": torch.zeros(2)},
            ValueError,
            r"value must have at least two dimensions",
        ),
        (
            {"key": torch.zeros(2, 3, dtype=torch.int64)},
            TypeError,
            r"key must be of a floating-point type.*int64",
        ),
        (
            {"value": torch.zeros(2, 3).double()},
            TypeError,
            r"share one type, got torch.float32, .*float32 and .*float64",
        ),
        (
            {"key": torch.zeros(2, 3, device="meta")},
            ValueError,
            r"key is on meta but query is on cpu",
        ),
        (
            {"value": np.zeros((2, 3))},
            TypeError,
            r"value must be a torch.Tensor, got ndarray",
        ),
        (
            {"query": np.zeros((2, 3))},
            TypeError,
            r"query must be a torch.Tensor, got ndarray",
        ),
        (
            {"query": torch.zeros(4, 2, 3), "key": torch.zeros(5, 2, 3)},
            ValueError,
            r"query \(4, 2, 3\), key \(5, 2, 3\), value \(2, 3\)",
        ),
        ({"dropout_p": 1.5}, ValueError, "dropout_p.*between 0 and 1.*1.5"),
        ({"dropout_p": -0.1}, ValueError, "dropout_p.*between 0 and 1.*-0.1"),
        ({"mask": torch.ones(2, 2)}, TypeError, r"mask must be boolean"),
        (
            {"mask": torch.ones(2, 3) > 0},
            ValueError,
            r"mask of shape \(2, 3\).*scores of shape \(2, 2\)",
        ),
        (
            {"score": lambda q, k: (q * k).sum(-1)},
            ValueError,
            r"score must return shape \(\.\.\., Tq, Tk\) = \(\.\.\., 2, 2\)",
        ),
        (
            {"score": lambda q, k: (q @ k.mT).numpy()},
            TypeError,
            r"result of score must be a torch.Tensor",
        ),
    ],
)
def test_bad_input_is_refused_by_name(change, error, words):
    arguments = {"query": OK, "key": OK, "value": OK, "score": dot}
    with pytest.raises(error, match=words):
        attend(**{**arguments, **change})
