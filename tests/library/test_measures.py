"""What weights and scores look like in numbers: each measure, each promise."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers import HALVES, randomised
from torch import nn
from torch.autograd import gradcheck

from attention_lib.attention import masked_softmax
from attention_lib.measures import (
    alignment_error_rate,
    attention_entropy,
    dot_product_moments,
    hard_alignment,
    head_gates,
    largest_weight,
    score_variance,
    softmax_jacobian,
    softmax_jacobian_norm,
)
from attention_lib.multihead import MultiHeadAttention, split_heads

F64 = torch.float64
MEASURES = [
    attention_entropy,
    largest_weight,
    softmax_jacobian_norm,
    score_variance,
]
EACH = pytest.mark.parametrize("measure", [*MEASURES, softmax_jacobian])


@st.composite
def rows(draw):
    """Weights of a few queries, from nearly equal to nearly one-hot."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    keys, spread = draw(st.integers(1, 9)), draw(st.floats(0.0, 60.0))
    scores = torch.randn(3, keys, generator=generator, dtype=F64)
    return (spread * scores).softmax(-1)


# --- alignment ---------------------------------------------------------------


@given(rows())
def test_a_hard_alignment_names_the_largest_weight_of_each_row(weights):
    links = hard_alignment(weights)
    assert sorted(i for i, _ in links) == [0, 1, 2]
    for i, j in links:
        assert weights[i, j] == weights[i].max()
    assert hard_alignment(weights[:0]) == set()


LINKS = st.lists(
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2))), max_size=3
)


@given(LINKS, st.data())
def test_the_alignment_error_counts_links(predicted, data):
    sure, possible = (
        [
            data.draw(LINKS.map(lambda x: x[0] if x else set()))
            for _ in predicted
        ]
        for _ in "sp"
    )
    counts = Counter()
    for links, must, may in zip(predicted, sure, possible, strict=True):
        for link in links:
            counts["right"] += (link in must) + (link in must or link in may)
        counts["all"] += len(links) + len(must)
    wanted = 1 - counts["right"] / counts["all"] if counts["all"] else 0.0
    found = alignment_error_rate(predicted, sure, possible)
    assert found == pytest.approx(wanted)
    assert 0.0 <= found <= 1.0
    assert alignment_error_rate(sure, sure) == 0.0
    right = alignment_error_rate(predicted, sure)
    assert right == pytest.approx(alignment_error_rate(predicted, sure, sure))


# --- moments of a dot product ------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"query_std": 2.0, "key_std": 0.5},
        {"key_mean": -2.0, "query_std": 0.3},
        {"query_mean": 1.5, "key_mean": -1.0, "key_std": 2.0},
        {"correlation": -1.0},
        {"query_mean": 0.5, "key_mean": 2.0, "correlation": 0.4},
    ],
)
def test_moments_are_those_of_simulated_vectors(options):
    width, count = 7, 200_000
    a, b = torch.randn(2, count, width, dtype=F64)
    rho = options.get("correlation", 0.0)
    b = rho * a + math.sqrt(1 - rho**2) * b
    query = options.get("query_mean", 0.0) + options.get("query_std", 1.0) * a
    key = options.get("key_mean", 0.0) + options.get("key_std", 1.0) * b
    products = (query * key).sum(1)
    mean, variance = dot_product_moments(width, **options)
    error = math.sqrt(variance / count)
    assert products.mean().item() == pytest.approx(mean, abs=5 * error)
    assert products.var().item() == pytest.approx(variance, rel=0.03)
    assert dot_product_moments(0, **options) == (0.0, 0.0)


def test_moments_need_no_normal_distribution_without_correlation():
    query = torch.randn(400_000, 5).sign() + 1.0
    key = torch.empty_like(query).exponential_() - 3.0
    _, variance = dot_product_moments(5, query_mean=1.0, key_mean=-2.0)
    found = (query * key).sum(1).var().item()
    assert found == pytest.approx(variance, rel=0.03)


# --- the softmax's Jacobian --------------------------------------------------


@given(st.integers(1, 8), st.floats(0, 5))
def test_the_jacobian_is_the_derivative_of_the_softmax(keys, spread):
    scores = spread * torch.randn(2, keys, dtype=F64)
    found = softmax_jacobian(scores.softmax(-1))
    for row, matrix in zip(scores, found, strict=True):
        exact = torch.func.jacrev(lambda s: s.softmax(-1))(row)
        torch.testing.assert_close(matrix, exact, atol=1e-12, rtol=1e-9)


@given(rows())
def test_the_jacobian_obeys_its_theorem(weights):
    jacobian = softmax_jacobian(weights)
    torch.testing.assert_close(jacobian, jacobian.mT)
    eigenvalues = torch.linalg.eigvalsh(jacobian)
    norm, m = softmax_jacobian_norm(weights), weights.amax(-1)
    trace = 1 - weights.square().sum(-1)
    chain = [
        torch.zeros_like(m),
        m * (1 - m),
        eigenvalues[:, -1],
        norm,
        trace,
        2 * (1 - m),
    ]
    for low, high in pairwise(chain):
        assert (low <= high + 1e-12).all()
    assert (eigenvalues > -1e-12).all()
    assert (jacobian.sum(-1).abs() < 1e-12).all()
    torch.testing.assert_close(
        norm, torch.linalg.matrix_norm(jacobian), atol=0, rtol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_norm_is_right_far_below_the_rounding_error_of_one(dtype):
    gap = torch.tensor([10.0, 30.0, 37.0], dtype=dtype)
    scores = torch.stack([torch.zeros_like(gap), -gap], dim=-1)
    expected = 2 * torch.exp(-gap) / (1 + torch.exp(-gap)) ** 2
    found = softmax_jacobian_norm(scores.softmax(-1))
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-4)
    assert softmax_jacobian_norm(torch.tensor([0.5, 0.5, 0.0])) == 0.5


# --- entropy, largest weight, variance ---------------------------------------


@given(rows())
def test_the_entropy_counts_keys_and_the_largest_weight_is_one(weights):
    expected = torch.distributions.Categorical(probs=weights).entropy()
    torch.testing.assert_close(
        attention_entropy(weights), expected, atol=1e-9, rtol=1e-6
    )
    torch.testing.assert_close(largest_weight(weights), weights.amax(-1))
    equal = torch.full_like(weights, 1 / weights.shape[-1])
    torch.testing.assert_close(
        attention_entropy(equal).exp(), equal.sum(-1) * weights.shape[-1]
    )


@given(st.integers(1, 9), st.floats(-100, 100))
def test_the_variance_is_over_the_keys_that_may_be_attended(keys, shift):
    scores = torch.randn(2, 3, 4, keys + 2, dtype=F64)
    plain = scores[..., :keys].var(-1, correction=0)
    torch.testing.assert_close(score_variance(scores[..., :keys]), plain)
    mask = (torch.arange(keys + 2) < keys).expand(2, 1, -1)  # per sample
    for garbage in (1e3, -torch.inf, torch.nan):
        scores[..., keys:] = garbage
        found = score_variance(scores + shift, mask)
        torch.testing.assert_close(found, plain)


# --- all of them -------------------------------------------------------------


@EACH
def test_a_row_without_keys_and_no_row_at_all_measure_zero(measure):
    dead = masked_softmax(torch.randn(2, 3), torch.zeros(2, 3).bool())
    assert (measure(dead) == 0).all()
    for shape in [(0, 3), (2, 0, 3), (2, 3, 0), (0,)]:
        found = measure(torch.zeros(shape))
        more = shape[-1:] * 2 if measure is softmax_jacobian else ()
        assert found.shape == shape[:-1] + more
        assert (found == 0).all()
    nothing = torch.zeros(2, 3).bool()
    assert (score_variance(torch.randn(2, 3), nothing) == 0).all()


@EACH
@pytest.mark.parametrize("dtype", HALVES)
def test_measures_of_half_precision_are_float32(measure, dtype):
    weights = torch.randn(4, 5).softmax(-1).to(dtype)
    found = measure(weights)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, measure(weights.float()))


@EACH
def test_gradients_of_measures_are_right_and_finite_at_hidden_keys(measure):
    scores = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    assert gradcheck(lambda s: measure(s.softmax(-1)), scores)
    mask = torch.ones(3, 4).bool()
    mask[0, 2:], mask[1, 1:], mask[2] = False, False, False
    measure(masked_softmax(scores, mask)).sum().backward()
    assert torch.isfinite(scores.grad).all()


@pytest.mark.plain
@EACH
def test_measures_compile_into_one_graph(measure):
    torch._dynamo.reset()
    compiled = torch.compile(measure, fullgraph=True, backend="eager")
    for shape in ((4, 5), (2, 3, 7)):
        weights = torch.randn(shape, dtype=F64).softmax(-1)
        torch.testing.assert_close(compiled(weights), measure(weights))


# --- gates of heads ----------------------------------------------------------


def layer_of(heads, **options):
    layer = MultiHeadAttention(12, heads, **options).double()
    return randomised(layer, std=1.0)


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"d_head": 5, "num_kv_heads": 1}])
def test_gates_weigh_the_terms_of_the_sum_over_heads(heads, options):
    layer = layer_of(heads, **options)
    x, gates = torch.randn(2, 5, 12, dtype=F64), torch.randn(heads, dtype=F64)
    merged = []
    handle = layer.output_proj.register_forward_pre_hook(
        lambda _, inputs: merged.append(inputs[0])
    )
    whole, weights = layer(x, need_weights=True)
    handle.remove()
    slices = layer.output_proj.weight.chunk(heads, dim=1)
    expected = layer.output_proj.bias + sum(
        gates[head] * split_heads(merged[0], heads)[:, head] @ slices[head].T
        for head in range(heads)
    )
    with head_gates(layer, gates):
        gated, same_weights = layer(x, need_weights=True)
    torch.testing.assert_close(gated, expected)
    assert torch.equal(same_weights, weights)
    with head_gates(layer, torch.ones(heads)):
        assert torch.equal(layer(x)[0], layer(x)[0])
        torch.testing.assert_close(layer(x)[0], whole)
    with head_gates(layer, torch.zeros(heads)):
        bias = layer.output_proj[1].bias
        assert torch.equal(layer(x)[0], bias.expand(2, 5, 12))


def test_gates_are_lifted_after_the_block_even_after_an_error():
    layer = layer_of(2)
    before, state = repr(layer), dict(layer.state_dict())
    with (
        pytest.raises(RuntimeError, match="inside"),
        head_gates(layer, torch.zeros(2)),
    ):
        raise RuntimeError("inside")
    assert repr(layer) == before
    assert list(layer.state_dict()) == list(state)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_a_gradient_reaches_the_gates_of_any_projection():
    layer = layer_of(3)
    layer.output_proj = nn.Sequential(layer.output_proj, nn.Tanh())
    x = torch.randn(2, 4, 12, dtype=F64)

    def gated(gates):
        with head_gates(layer, gates):
            return layer(x)[0]

    gates = torch.rand(3, dtype=F64, requires_grad=True)
    assert gradcheck(gated, (gates,))


@pytest.mark.plain
def test_gates_work_on_a_layer_that_was_compiled_before():
    layer = layer_of(2)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager")
    x = torch.randn(1, 3, 12, dtype=F64)
    before, _ = compiled(x)
    with head_gates(layer, torch.zeros(2)):
        closed, _ = compiled(x)
    bias = layer.output_proj.bias.expand(1, 3, 12)
    torch.testing.assert_close(closed, bias)
    torch.testing.assert_close(compiled(x)[0], before)
