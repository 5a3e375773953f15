"""What the scaled dot product and the measures promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import reference
from attention_lib.attention import attend, masked_softmax
from attention_lib.measures import (
    attention_entropy,
    dot_product_moments,
    largest_weight,
    score_variance,
    softmax_jacobian,
    softmax_jacobian_norm,
)
from attention_lib.scores import dot_score, scaled_dot_score

HALVES = [torch.float16, torch.bfloat16]
MEASURES = [
    attention_entropy,
    largest_weight,
    softmax_jacobian_norm,
    score_variance,
]
# B != H, Tq != Tk, and a width that is none of them.
B, H, TQ, TK, D = 2, 3, 4, 5, 6


def small(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@st.composite
def rows(draw):
    """Weights of a few queries, from nearly equal to nearly one-hot."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    keys, spread = draw(st.integers(1, 9)), draw(st.floats(0.0, 60.0))
    scores = torch.randn(3, keys, generator=generator, dtype=torch.float64)
    return (spread * scores).softmax(-1)


# --- scaled_dot_score: values ------------------------------------------------


@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 9),
)
def test_is_the_dot_product_over_the_root_of_the_width(batch, tq, tk, width):
    query = torch.randn(*batch, tq, width, dtype=torch.float64)
    key = torch.randn(*batch, tk, width, dtype=torch.float64)
    scores = scaled_dot_score(query, key)
    assert scores.shape == (*batch, tq, tk)
    expected = np.einsum("...id,...jd->...ij", query.numpy(), key.numpy())
    np.testing.assert_allclose(
        scores.numpy(), expected / math.sqrt(max(width, 1)), atol=1e-12
    )


def test_attention_with_it_equals_the_reference():
    query, key = small(B, H, TQ, D), small(B, H, TK, D)
    value = small(B, H, TK, 7)
    mask = torch.rand(B, 1, TQ, TK) < 0.6
    found = attend(query, key, value, score=scaled_dot_score, mask=mask)
    arrays = (t.detach().numpy() for t in (query, key, value))
    expected = reference.attention(*arrays, mask=mask.numpy())
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            ours.detach().numpy(), theirs, rtol=1e-10, atol=1e-12
        )


def test_the_width_is_that_of_one_head():
    """The case E4: one over the root of the model width is too small."""
    query = torch.tensor([[1.0, 1.0]])
    key = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    weights = scaled_dot_score(query, key).softmax(-1)
    torch.testing.assert_close(
        weights, torch.tensor([[0.8044, 0.1956]]), atol=1e-4, rtol=0
    )
    model = scaled_dot_score(query, key, scale=(4 * 2) ** -0.5).softmax(-1)
    torch.testing.assert_close(
        model, torch.tensor([[0.6698, 0.3302]]), atol=1e-4, rtol=0
    )


@given(st.floats(-5, 5))
def test_a_scale_multiplies(scale):
    query, key = torch.randn(TQ, D), torch.randn(TK, D)
    torch.testing.assert_close(
        scaled_dot_score(query, key, scale=scale),
        dot_score(query, key) * scale,
    )


def test_a_scale_of_zero_is_not_the_default():
    scores = scaled_dot_score(torch.ones(2, 4), torch.ones(3, 4), scale=0.0)
    assert (scores == 0).all()


def test_a_learned_scale_for_each_head_gets_a_gradient():
    query, key = small(B, H, TQ, D), small(B, H, TK, D)
    scale = torch.linspace(0.1, 1.0, H, dtype=torch.float64).view(H, 1, 1)
    scale.requires_grad_()
    scores = scaled_dot_score(query, key, scale=scale)
    for head in range(H):
        torch.testing.assert_close(
            scores[:, head],
            dot_score(query[:, head], key[:, head]) * scale[head],
        )
    scores.sum().backward()
    expected = dot_score(query, key).sum((0, 2, 3))
    torch.testing.assert_close(scale.grad.flatten(), expected)


def test_a_scale_of_another_precision_keeps_the_type_of_the_scores():
    query = torch.randn(TQ, D)
    scale = torch.full((1, 1), 0.5, dtype=torch.float64)
    assert scaled_dot_score(query, query, scale=scale).dtype == torch.float32
    wide = scaled_dot_score(
        query.double(), query.double(), scale=scale.float()
    )
    assert wide.dtype == torch.float64


# --- scaled_dot_score: precision, gradients, compilation ---------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_gives_float32_scores(dtype):
    query, key = torch.randn(TQ, D).to(dtype), torch.randn(TK, D).to(dtype)
    scores = scaled_dot_score(query, key)
    assert scores.dtype == torch.float32
    expected = scaled_dot_score(query.double(), key.double())
    torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [80, 1040])
def test_half_precision_does_not_overflow(dtype, width):
    """The case A14: entries of 256 at width 80 overflow half precision."""
    query = torch.full((2, width), 256.0, dtype=dtype)
    scores = scaled_dot_score(query, query)
    expected = torch.full((2, 2), 256.0**2 * math.sqrt(width))
    # A long sum in float32 has some rounding, more in older releases.
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=0)


def test_a_scaled_score_that_fits_does_not_overflow_on_the_way():
    huge = torch.full((1, 4), 1.2e19)
    assert torch.isinf(dot_score(huge, huge)).all()
    assert torch.isfinite(scaled_dot_score(huge, huge)).all()


def test_autocast_does_not_narrow_the_scores():
    query = torch.full((2, 80), 256.0)
    with torch.autocast("cpu", dtype=torch.float16):
        scores = scaled_dot_score(query, query)
        half = scaled_dot_score(query.half(), query.half())
    assert scores.dtype == half.dtype == torch.float32
    assert torch.isfinite(scores).all()
    torch.testing.assert_close(half, scores)


def test_gradients_are_those_of_finite_differences():
    scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    inputs = (small(B, 1, TQ, D), small(H, TK, D))
    assert torch.autograd.gradcheck(scaled_dot_score, inputs)
    assert torch.autograd.gradgradcheck(scaled_dot_score, inputs)
    assert torch.autograd.gradcheck(
        lambda q, k, c: scaled_dot_score(q, k, scale=c), (*inputs, scale)
    )


def test_inputs_are_not_written_to():
    query, key = torch.randn(TQ, D), torch.randn(TK, D)
    scale = torch.tensor(2.0)
    before = [t.clone() for t in (query, key, scale)]
    scaled_dot_score(query, key, scale=scale)
    scaled_dot_score(query, key)
    for old, new in zip(before, (query, key, scale), strict=True):
        assert torch.equal(old, new)


@pytest.mark.plain
def test_compiles_into_one_graph_for_changing_shapes():
    compiled = torch.compile(
        scaled_dot_score, fullgraph=True, backend="aot_eager"
    )
    for batch, tq, tk, width in ((2, 4, 5, 6), (3, 7, 2, 9), (4, 5, 8, 11)):
        query, key = small(batch, tq, width), small(batch, tk, width)
        results = [
            torch.autograd.grad(f(query, key).sin().sum(), (query, key))
            for f in (scaled_dot_score, compiled)
        ]
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)
    scale = torch.tensor(0.5, dtype=torch.float64)
    torch.testing.assert_close(
        compiled(query, key, scale=scale),
        scaled_dot_score(query, key, scale=0.5),
    )


@pytest.mark.plain
@pytest.mark.parametrize(
    ("query", "key", "options", "error", "words"),
    [
        ((2, 3), (4, 5), {}, ValueError, ["query", "key", "(2, 3)", "(4, 5)"]),
        ((3,), (4, 3), {}, ValueError, ["query", "(3,)"]),
        ((), (4, 3), {}, ValueError, ["query", "()"]),
        ((2, 3), (3,), {}, ValueError, ["key", "(3,)"]),
        ((2, 4, 3), (5, 4, 3), {}, ValueError, ["(2, 4, 3)", "(5, 4, 3)"]),
        ((2, 3), (4, 3), {"scale": "root"}, TypeError, ["scale", "str"]),
        ((2, 3), (4, 3), {"scale": True}, TypeError, ["scale", "bool"]),
    ],
)
def test_bad_input_is_named(query, key, options, error, words):
    with pytest.raises(error) as caught:
        scaled_dot_score(torch.ones(query), torch.ones(key), **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.plain
def test_token_numbers_are_refused_and_not_scaled():
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(TypeError, match="query"):
        scaled_dot_score(ids, torch.ones(4, 3))
    with pytest.raises(TypeError, match="key"):
        scaled_dot_score(torch.ones(4, 3), ids)


# --- dot_product_moments -----------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"query_std": 2.0, "key_std": 0.5},
        {"query_mean": 1.0},
        {"key_mean": -2.0, "query_std": 0.3},
        {"query_mean": 1.5, "key_mean": -1.0, "key_std": 2.0},
        {"correlation": 0.7},
        {"correlation": -1.0},
        {"query_mean": 0.5, "key_mean": 2.0, "correlation": 0.4},
    ],
)
def test_moments_are_those_of_simulated_vectors(options):
    width, count = 7, 200_000
    a, b = torch.randn(2, count, width, dtype=torch.float64)
    rho = options.get("correlation", 0.0)
    b = rho * a + math.sqrt(1 - rho**2) * b
    query = options.get("query_mean", 0.0) + options.get("query_std", 1.0) * a
    key = options.get("key_mean", 0.0) + options.get("key_std", 1.0) * b
    products = (query * key).sum(1)
    mean, variance = dot_product_moments(width, **options)
    error = math.sqrt(variance / count)
    assert products.mean().item() == pytest.approx(mean, abs=5 * error)
    assert products.var().item() == pytest.approx(variance, rel=0.03)


@given(st.integers(0, 4096))
def test_the_theorem_is_the_default(width):
    assert dot_product_moments(width) == (0.0, width)


def test_moments_need_no_normal_distribution_without_correlation():
    query = torch.randn(400_000, 5).sign() + 1.0
    key = torch.empty_like(query).exponential_() - 3.0
    products = (query * key).sum(1)
    _, variance = dot_product_moments(5, query_mean=1.0, key_mean=-2.0)
    assert products.var().item() == pytest.approx(variance, rel=0.03)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("name", "value"),
    [("query_std", -1.0), ("key_std", -0.1), ("correlation", 1.5)],
)
def test_impossible_moments_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        dot_product_moments(4, **{name: value})


@pytest.mark.plain
def test_a_negative_width_is_refused():
    with pytest.raises(ValueError, match="width"):
        dot_product_moments(-1)


# --- the softmax's Jacobian --------------------------------------------------


@given(st.integers(1, 8), st.floats(0, 5))
def test_the_jacobian_is_the_derivative_of_the_softmax(keys, spread):
    scores = spread * torch.randn(keys, dtype=torch.float64)
    exact = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    found = softmax_jacobian(scores.softmax(-1))
    torch.testing.assert_close(found, exact, atol=1e-12, rtol=1e-9)


@given(rows())
def test_the_jacobian_obeys_its_theorem(weights):
    jacobian = softmax_jacobian(weights)
    n = weights.shape[-1]
    torch.testing.assert_close(jacobian, jacobian.mT)
    eigenvalues = torch.linalg.eigvalsh(jacobian)
    assert (eigenvalues > -1e-12).all()
    assert (jacobian.sum(-1).abs() < 1e-12).all()
    m = weights.amax(-1)
    spectral, frobenius = eigenvalues[:, -1], softmax_jacobian_norm(weights)
    trace = 1 - weights.square().sum(-1)
    slack = 1e-12
    assert (m * (1 - m) <= spectral + slack).all()
    assert (spectral <= frobenius + slack).all()
    assert (frobenius <= trace + slack).all()
    assert (trace <= 2 * (1 - m) + slack).all()
    assert (spectral <= 0.5 + slack).all()
    if n > 1:
        top = weights.log().topk(2).values
        gap = top[:, 0] - top[:, 1]
        assert (2 * (1 - m) <= 2 * (n - 1) * torch.exp(-gap) + slack).all()


@given(rows())
def test_the_norm_is_that_of_the_matrix(weights):
    expected = torch.linalg.matrix_norm(softmax_jacobian(weights))
    found = softmax_jacobian_norm(weights)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_is_right_far_below_the_rounding_error_of_one(dtype):
    gap = torch.tensor([10.0, 30.0, 37.0], dtype=dtype)
    scores = torch.stack([torch.zeros_like(gap), -gap], dim=-1)
    expected = 2 * torch.exp(-gap) / (1 + torch.exp(-gap)) ** 2
    found = softmax_jacobian_norm(scores.softmax(-1))
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-4)


def test_two_keys_that_share_the_weight_have_the_largest_norm():
    weights = torch.tensor([0.5, 0.5, 0.0])
    assert torch.linalg.matrix_norm(softmax_jacobian(weights), 2) == 0.5
    assert softmax_jacobian_norm(weights) == 0.5


def test_the_norm_is_the_expected_gradient_at_the_scores():
    """Root mean square over standard normal gradients at the weights."""
    weights = torch.randn(6, dtype=torch.float64).softmax(-1)
    arriving = torch.randn(100_000, 6, dtype=torch.float64)
    at_scores = arriving @ softmax_jacobian(weights)
    measured = at_scores.square().sum(-1).mean().sqrt()
    expected = softmax_jacobian_norm(weights)
    torch.testing.assert_close(measured, expected, rtol=0.02, atol=0)


# --- the other measures ------------------------------------------------------


@given(rows())
def test_the_entropy_counts_keys(weights):
    expected = torch.distributions.Categorical(probs=weights).entropy()
    entropy = attention_entropy(weights)
    torch.testing.assert_close(entropy, expected, atol=1e-9, rtol=1e-6)
    assert (entropy >= 0).all()
    assert (entropy <= math.log(weights.shape[-1]) + 1e-12).all()


@pytest.mark.parametrize("keys", [1, 2, 7])
def test_equal_weights_have_the_largest_entropy(keys):
    entropy = attention_entropy(torch.full((keys,), 1 / keys))
    assert entropy.exp().item() == pytest.approx(keys)


@given(rows())
def test_the_largest_weight_is_one_of_them(weights):
    largest = largest_weight(weights)
    assert (largest[:, None] >= weights).all()
    assert (largest[:, None] == weights).any(-1).all()


@given(st.integers(1, 9), st.floats(-100, 100))
def test_the_variance_ignores_what_a_row_has_in_common(keys, shift):
    scores = torch.randn(B, TQ, keys, dtype=torch.float64)
    found = score_variance(scores + shift)
    torch.testing.assert_close(found, scores.var(-1, correction=0))


def test_the_variance_is_over_the_keys_that_may_be_attended():
    scores = torch.randn(B, H, TQ, TK, dtype=torch.float64)
    lengths = torch.tensor([3, 5])
    mask = (torch.arange(TK) < lengths[:, None])[:, None, None, :]
    found = score_variance(scores, mask)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(
            found[b], scores[b, ..., :length].var(-1, correction=0)
        )
    hidden = scores.masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(score_variance(hidden, mask), found)


def test_a_row_without_keys_measures_zero():
    dead = masked_softmax(torch.randn(2, 3), torch.zeros(2, 3).bool())
    for measure in (
        attention_entropy,
        largest_weight,
        softmax_jacobian_norm,
    ):
        assert (measure(dead) == 0).all()
    assert (softmax_jacobian(dead) == 0).all()
    nothing = torch.zeros(2, 3).bool()
    assert (score_variance(torch.randn(2, 3), nothing) == 0).all()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (2, 3, 0), (0,)])
def test_empty_batches_and_no_keys_work(measure, shape):
    found = measure(torch.zeros(shape))
    assert found.shape == shape[:-1]
    assert (found == 0).all()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)])
def test_the_jacobian_of_nothing_is_empty(shape):
    assert softmax_jacobian(torch.zeros(shape)).shape == (*shape, shape[-1])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("measure", [*MEASURES, softmax_jacobian])
def test_measures_of_half_precision_are_float32(measure, dtype):
    weights = torch.randn(TQ, TK).softmax(-1).to(dtype)
    found = measure(weights)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, measure(weights.float()))


@pytest.mark.parametrize("measure", [*MEASURES, softmax_jacobian])
def test_gradients_of_measures_are_those_of_finite_differences(measure):
    scores = small(B, TQ, TK)
    assert torch.autograd.gradcheck(lambda s: measure(s.softmax(-1)), scores)


@pytest.mark.parametrize("measure", [*MEASURES, softmax_jacobian])
def test_gradients_are_finite_at_hidden_keys_and_dead_rows(measure):
    scores = small(3, TK)
    mask = torch.ones(3, TK).bool()
    mask[0, 2:], mask[1, 1:], mask[2] = False, False, False
    measure(masked_softmax(scores, mask)).sum().backward()
    assert torch.isfinite(scores.grad).all()


@pytest.mark.plain
def test_a_mask_of_numbers_is_refused():
    with pytest.raises(TypeError, match=r"mask must be boolean.*float32"):
        score_variance(torch.randn(2, 3), torch.ones(2, 3))


@pytest.mark.plain
@pytest.mark.parametrize("measure", [*MEASURES, softmax_jacobian])
def test_measures_compile_into_one_graph(measure):
    compiled = torch.compile(measure, fullgraph=True, backend="aot_eager")
    for shape in ((TQ, TK), (B, 3, 7)):
        weights = torch.randn(shape, dtype=torch.float64).softmax(-1)
        torch.testing.assert_close(compiled(weights), measure(weights))
