"""What ``masked_softmax``, ``attend`` and the scaled one promise besides.

That their numbers and gradients are right is asked in ``test_oracle``.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers import BOTH, HALVES, peak_bytes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import attention_lib as lib
from attention_lib import attention, reference
from attention_lib._numerics import quick_softmax
from attention_lib.attention import (
    attend,
    masked_softmax,
    scaled_dot_product_attention,
)

INF = torch.inf
F64 = torch.float64
EACH_HALF = pytest.mark.parametrize("dtype", HALVES)
WAYS = {
    "attend": lambda q, k, v, **options: attend(
        q, k, v, score=lib.scaled_dot_score, **options
    ),
    "formula": lambda q, k, v, **options: scaled_dot_product_attention(
        q, k, v, need_weights=True, **options
    ),
    "kernel": scaled_dot_product_attention,
}
EACH_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def small(*shape, dtype=F64, grad=False):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


@pytest.fixture(params=["as shown", "quick"])
def softmax_way(request, monkeypatch):
    """Both ways through ``masked_softmax``: the lines shown, the fast one."""
    if request.param == "as shown":
        monkeypatch.setattr(attention, "quick_softmax", lambda *_: None)
    return request.param


# --- masked_softmax ----------------------------------------------------------


@st.composite
def tables(draw):
    """Scores of any size, a mask that broadcasts to them, an axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    scores = torch.randn(shape, generator=generator, dtype=F64)
    scores *= draw(st.sampled_from([1e-3, 1.0, 30.0, 1e4, 1e30]))
    scores += draw(st.sampled_from([0.0, -2e6, 1e5]))
    narrow = [draw(st.sampled_from([1, size])) for size in shape]
    first = draw(st.integers(0, len(shape) - 1))
    if len(shape) == 4 and first == 1:  # three axes: (B, Tq or 1, Tk)
        del narrow[1]
    else:
        narrow = narrow[first:]
    mask = torch.rand(narrow, generator=generator) < 0.6
    return scores, mask, draw(st.integers(-len(shape), len(shape) - 1))


@pytest.mark.parametrize("quick", [True, False])
@given(tables(), st.sampled_from([None, math.nan, INF, 1e300, -1e300]))
def test_weights_are_those_of_the_reference(quick, table, garbage):
    scores, mask, dim = table
    keep = mask[:, None] if scores.dim() == 4 and mask.dim() == 3 else mask
    wanted = reference.softmax(scores, keep, axis=dim)
    plain = reference.softmax(scores, axis=dim)
    hidden = ~keep.expand(scores.shape)
    given_in = (
        scores if garbage is None else scores.masked_fill(hidden, garbage)
    )
    before = given_in.clone(), mask.clone()
    with pytest.MonkeyPatch.context() as patch:
        if not quick:
            patch.setattr(attention, "quick_softmax", lambda *_: None)
        found = masked_softmax(given_in, mask, dim=dim)
        without = masked_softmax(scores, dim=dim)
        by_value = masked_softmax(scores.masked_fill(hidden, -INF), dim=dim)
    close = {"rtol": 1e-12, "atol": 1e-15}
    np.testing.assert_allclose(found, wanted, **close)
    np.testing.assert_allclose(by_value, wanted, **close)
    np.testing.assert_allclose(without, plain, **close)
    assert torch.equal(given_in.nan_to_num(), before[0].nan_to_num())
    assert torch.equal(mask, before[1])


def test_a_score_that_is_nan_and_seen_is_not_covered_up(softmax_way):
    assert masked_softmax(torch.tensor([math.nan, 0.0])).isnan().all()
    mask = torch.tensor([[True, True], [False, False]])
    scores = torch.tensor([[math.nan, 0.0]]).expand(2, 2)
    assert masked_softmax(scores, mask)[0].isnan().all()
    assert masked_softmax(scores, mask)[1].tolist() == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    ("scores", "mask"),
    [
        ([[0.0, 0.0], [1.0, 2.0]], [[False, False], [True, False]]),
        ([[-INF, -INF], [1.0, -INF]], None),
        ([[-INF, -INF], [1.0, -INF]], [[True, False], [True, True]]),
        ([[math.nan] * 2, [1.0, math.nan]], [[False] * 2, [True, False]]),
    ],
    ids=["masked", "minus infinity", "both", "nan behind the mask"],
)
def test_a_dead_row_gets_zeros_and_finite_gradients(softmax_way, scores, mask):
    scores = torch.tensor(scores, requires_grad=True)
    mask = None if mask is None else torch.tensor(mask)
    with torch.autograd.detect_anomaly():
        weights = masked_softmax(scores, mask)
        (weights * torch.tensor([[2.0, 3.0], [5.0, 7.0]])).sum().backward()
    assert weights[0].tolist() == [0.0, 0.0]
    assert weights[1].tolist() == [1.0, 0.0]
    assert scores.grad.isfinite().all()
    assert (scores.grad[0] == 0).all()


def test_softmax_has_first_and_second_derivatives(softmax_way):
    scores = small(3, 4, grad=True)
    keep = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    for check in (gradcheck, gradgradcheck):
        assert check(lambda s: masked_softmax(s, keep), (scores,))


@EACH_HALF
def test_half_scores_are_summed_in_float32(softmax_way, dtype):
    scores = small(4, 3000, dtype=torch.float32).mul(4).to(dtype)
    keep = torch.rand(4, 3000) < 0.9
    keep[0] = False
    wide = masked_softmax(scores.float(), keep)
    assert torch.equal(masked_softmax(scores, keep), wide.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(masked_softmax(scores.float(), keep), wide)


def test_usual_masks_take_the_quick_way():
    """What it returns is compared elsewhere; here, that it returns."""
    scores = small(2, 3, 4).float()
    padding = torch.tensor([True, True, False, False])
    dead = torch.tensor([[True], [False], [True]]).expand(3, 4)
    for mask in (None, padding, dead, dead.expand(2, 3, 4)):
        assert quick_softmax(scores, mask, -1) is not None


def test_a_softmax_that_nobody_needs_again_copies_no_scores():
    scores = torch.randn(64, 128, 128)
    causal = torch.ones(128, 128, dtype=torch.bool).tril()
    assert peak_bytes(lambda: masked_softmax(scores, causal)) < (
        1.5 * scores.nbytes
    )


# --- attend ------------------------------------------------------------------


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


def test_autocast_scores_in_float32_whatever_the_inputs_are():
    layer = nn.Linear(64, 64)
    query, key = small(3, 64).bfloat16(), small(5, 64).float()
    seen = []

    def score(query, key):
        scores = layer(query) @ key.mT / 8
        seen.append((query.dtype, key.dtype, scores.dtype))
        return scores

    with torch.autocast("cpu", dtype=torch.bfloat16):
        context, weights = attend(query, key, key, score=score)
    assert seen == [(torch.float32,) * 3]
    wide = attend(query.float(), key, key, score=score)
    torch.testing.assert_close(context, wide[0], rtol=0, atol=0)
    torch.testing.assert_close(weights, wide[1].to(weights.dtype))


@EACH_WAY
@EACH_HALF
def test_half_inputs_are_summed_in_float32_and_returned_in_half(way, dtype):
    query = small(2, 3, 8, dtype=dtype)
    key, value = small(2, 500, 8, dtype=dtype), small(2, 500, 4, dtype=dtype)
    exact = reference.attention(*(t.double() for t in (query, key, value)))
    for got, right in zip(way(query, key, value), exact, strict=True):
        if got is not None:
            torch.testing.assert_close(
                got,
                torch.from_numpy(right).to(dtype),
                rtol=torch.finfo(dtype).eps,
                atol=1e-6,
            )
    largest = torch.finfo(dtype).max
    value = torch.full((1, 1000, 1), largest, dtype=dtype)
    query, key = small(1, 1, 4, dtype=dtype), small(1, 1000, 4, dtype=dtype)
    assert way(query, key, value)[0].item() == largest


# --- both paths of the scaled one --------------------------------------------


def test_weights_come_from_the_formula_and_the_rest_from_the_kernel(
    monkeypatch,
):
    """One chain: what chapter 2 shows is what runs."""
    calls = []

    def watch(place, name):
        original = getattr(place, name)

        def spy(*args, **options):
            calls.append((name, args))
            return original(*args, **options)

        monkeypatch.setattr(place, name, spy)

    watch(attention, "attend")
    watch(attention, "masked_softmax")
    watch(F, "scaled_dot_product_attention")
    for shape in ((3, 4), (2, 3, 4), (2, 5, 3, 4), (2, 2, 5, 3, 4)):
        query = torch.randn(shape)
        scaled_dot_product_attention(query, query, query, need_weights=True)
        assert [name for name, _ in calls] == ["attend", "masked_softmax"]
        calls.clear()
        scaled_dot_product_attention(query, query, query)
        ((name, args),) = calls
        assert name == "scaled_dot_product_attention"
        assert {tensor.dim() for tensor in args} == {4}  # the fast kernels
        calls.clear()


CAUSAL = {"is_causal": True}
ONE, HALF, THIRD, QUARTER = 1, 1 / 2, 1 / 3, 1 / 4
# What may be seen, the rule, and the right weights where all scores are 0.
ZERO_SCORES = {
    "pytorch 103963": (
        [[1, 1, 0], [0, 0, 0]], {}, [[HALF, HALF, 0], [0, 0, 0]],
    ),
    "LLMs-from-scratch 1061": ([1, 1, 0], {}, [[HALF, HALF, 0]]),
    "pytorch 103082": (None, CAUSAL, [[THIRD] * 3 + [0], [QUARTER] * 4]),
    "pytorch 63271": (
        [1, 1, 0], CAUSAL, [[ONE, 0, 0], [HALF, HALF, 0], [HALF, HALF, 0]],
    ),
    "fairseq 537": (
        [0, 1, 1], CAUSAL, [[0, 0, 0], [0, ONE, 0], [0, HALF, HALF]],
    ),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("thread", ZERO_SCORES)
def test_faults_reported_elsewhere_are_not_ours(thread, dtype, need_weights):
    keep, options, rows = ZERO_SCORES[thread]
    rows = torch.tensor(rows, dtype=dtype)
    mask = None if keep is None else torch.tensor(keep).bool()
    query = torch.zeros(len(rows), 2, dtype=dtype)
    key = torch.ones(rows.shape[1], 2, dtype=dtype)
    context, weights = scaled_dot_product_attention(
        query, key, torch.eye(rows.shape[1], dtype=dtype), mask=mask,
        need_weights=need_weights, **options,
    )  # fmt: skip
    torch.testing.assert_close(context, rows)
    if need_weights:
        torch.testing.assert_close(weights, rows)


@BOTH
def test_hidden_scores_may_be_far_above_the_kept_ones(need_weights):
    """d2l fills -1e6, which is not below every score."""
    context, _ = scaled_dot_product_attention(
        torch.full((1, 1), -2e6), torch.ones(3, 1), torch.eye(3),
        mask=torch.tensor([True, True, False]), scale=1.0,
        need_weights=need_weights,
    )  # fmt: skip
    assert context.tolist() == [[0.5, 0.5, 0.0]]


@BOTH
def test_long_rows_whose_first_blocks_are_masked(need_weights):
    """A kernel works in blocks, and a block may hold no key at all."""
    query, key, value = torch.randn(3, 1, 2, 1100, 8, dtype=F64)
    mask = torch.zeros(1100, 1100, dtype=torch.bool)
    mask[:700, 900:] = True
    mask[900:, 5] = True
    got, _ = scaled_dot_product_attention(
        query, key, value, mask=mask, need_weights=need_weights
    )
    right, _ = reference.attention(query, key, value, mask)
    np.testing.assert_allclose(got, right, atol=1e-12)


@BOTH
@EACH_HALF
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": torch.ones(4, 4, dtype=torch.bool).tril()},
        {"is_causal": True},
        {"dropout_p": 0.5},
        {"bias": torch.tensor([0.0, 0.0, -1e6, -1e6])},
        {"bias": torch.zeros(4, 4, requires_grad=True)},
    ],
)
@pytest.mark.parametrize("d_v", [80, 40])
def test_products_beyond_half_precision(need_weights, dtype, options, d_v):
    """pytorch/pytorch #160841: 256 * 256 * 80 is above 65504."""
    query = torch.full((1, 4, 80), 256.0, dtype=dtype)
    value = torch.full((1, 4, d_v), 256.0, dtype=dtype)
    for precision in (False, True):
        with torch.autocast("cpu", dtype=dtype, enabled=precision):
            context, _ = scaled_dot_product_attention(
                query, query, value, need_weights=need_weights, **options
            )
        assert context.isfinite().all()
        assert (context == 256).all() or "dropout_p" in options


@BOTH
def test_a_bias_is_not_rounded_to_half(need_weights):
    half = torch.float16
    context, _ = scaled_dot_product_attention(
        torch.zeros(1, 1, dtype=half),
        torch.zeros(2, 1, dtype=half),
        torch.tensor([[1.0], [3.0]], dtype=half),
        bias=torch.tensor([100000.0, 100000.0 + math.log(3)]),
        need_weights=need_weights,
    )
    assert context.item() == pytest.approx(2.5, abs=0.01)
    for bias in (torch.zeros(2, dtype=half), torch.zeros(2, dtype=F64)):
        context, _ = scaled_dot_product_attention(
            torch.zeros(1, 1), torch.zeros(2, 1), torch.eye(2), bias=bias,
            need_weights=need_weights,
        )  # fmt: skip
        assert context.tolist() == [[0.5, 0.5]]


@BOTH
def test_autocast_changes_no_digit_and_forgets_no_option(need_weights):
    inputs = [torch.randn(2, 3, 4, 5) for _ in range(3)]
    for options in (
        {"mask": torch.rand(4, 4) < 0.5},
        {"bias": torch.randn(4, 4)},
        {"is_causal": True},
        {"scale": 3.0},
        {"dropout_p": 1.0},
    ):
        options["need_weights"] = need_weights
        expected = scaled_dot_product_attention(*inputs, **options)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = scaled_dot_product_attention(*inputs, **options)
            mixed, _ = scaled_dot_product_attention(
                inputs[0].bfloat16(), *inputs[1:], **options
            )
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(mixed, expected[0], rtol=0.02, atol=0.05)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e-50, 1e-3])
def test_a_causal_kernel_takes_any_scale(scale):
    """PyTorch's multiplies its own mask of minus infinity by the scale."""
    inputs = [small(2, 5, 4, grad=True) for _ in range(3)]
    results = []
    for need_weights in (True, False):
        out, _ = scaled_dot_product_attention(
            *inputs, is_causal=True, scale=scale, need_weights=need_weights
        )
        results.append([out, *torch.autograd.grad(out.sin().sum(), inputs)])
    torch.testing.assert_close(*results)


@BOTH
@pytest.mark.parametrize("heads", [1, 2])
def test_grouped_heads_are_never_copied_out(heads, need_weights):
    """A cache of 8 MiB, read by eight query heads for each of its own."""
    query = torch.randn(1, 8 * heads, 1, 64)
    key, value = torch.randn(2, 1, heads, 2**14 // heads, 64)
    mask = torch.rand(1, 1, key.shape[2]) < 0.9

    def step():
        scaled_dot_product_attention(
            query, key, value, mask=mask, need_weights=need_weights
        )

    assert peak_bytes(step) < key.nbytes


# --- dropout -----------------------------------------------------------------


@EACH_WAY
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_drops_each_weight_independently(way, masked):
    """The context of an identity value is the dropped weights."""
    query, key = torch.zeros(2000, 1, 3, 2), torch.zeros(2000, 1, 4, 2)
    eye = torch.eye(4).expand(2000, 1, 4, 4)
    mask = torch.tensor([True, True, False, True]) if masked else None
    dropped, weights = way(query, key, eye, mask=mask, dropout_p=0.2)
    count = 3 if masked else 4
    if weights is not None:  # pytorch/pytorch #42929: before dropout
        torch.testing.assert_close(weights, weights.gt(0).float().div(count))
    if masked:
        assert (dropped[..., 2] == 0).all()
        dropped = dropped[..., mask]
    kept = dropped > 0
    torch.testing.assert_close(
        dropped[kept], torch.full_like(dropped[kept], 1 / count / 0.8)
    )
    assert (kept.float().mean((0, 1, 2)) - 0.8).abs().max() < 0.02
    correlation = torch.corrcoef(kept.double().reshape(-1, count).mT)
    assert (correlation - torch.eye(count)).abs().max() < 0.06
    assert not torch.equal(kept[:, :, 0], kept[:, :, 1])
    assert not way(query, key, eye, mask=mask, dropout_p=1.0)[0].any()


# --- derivatives, compilers, transforms, devices -----------------------------

OPTIONS = {
    "none": {},
    "mask": {"mask": torch.tensor([[True, False, True], [False] * 3])},
    "bias": {"bias": torch.tensor([0.0, -INF, 1.0], dtype=F64)},
    "causal": {
        "is_causal": True,
        "mask": torch.tensor([[[False] * 3], [[True] * 3]]),
    },
    "grouped": {"is_causal": True},
}
EACH_OPTION = pytest.mark.parametrize("option", OPTIONS)


def inputs_for(option, grad=True):
    heads = 1 if option == "grouped" else 2
    return [
        small(2, 2, 2, 3, grad=grad),
        small(2, heads, 3, 3, grad=grad),
        small(2, heads, 3, 2, grad=grad),
    ]


@pytest.mark.filterwarnings("ignore:.torch.jit")
@BOTH
@EACH_OPTION
def test_derivatives_are_those_of_finite_differences(option, need_weights):
    """In both directions and of second order where weights are asked for."""

    def run(*tensors):
        outputs = scaled_dot_product_attention(
            *tensors, **OPTIONS[option], need_weights=need_weights
        )
        return tuple(part for part in outputs if part is not None)

    inputs = inputs_for(option)
    assert gradcheck(run, inputs, check_forward_ad=need_weights)
    assert not need_weights or gradgradcheck(run, inputs)


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_the_kernel_refuses_what_the_formula_has():
    """A second derivative, and one forward: not 0, and not without a word."""
    query = small(2, 3, 4, grad=True)

    def run(query):
        return scaled_dot_product_attention(query, query, query)[0].sin()

    (gradient,) = torch.autograd.grad(
        run(query).sum(), query, create_graph=True
    )
    with pytest.raises(RuntimeError, match="not implemented"):
        gradient.sum().backward()
    plain = query.detach()
    with pytest.raises(RuntimeError, match=r"not .*implemented"):
        torch.func.jvp(run, (plain,), (plain,))


@pytest.mark.plain
@BOTH
@EACH_OPTION
def test_it_compiles_into_one_graph(option, need_weights):
    def run(query, key, value):
        return scaled_dot_product_attention(
            query, key, value, **OPTIONS[option], need_weights=need_weights
        )

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    inputs = inputs_for(option)
    results = []
    for function in (compiled, run):
        outputs = function(*inputs)
        gradients = torch.autograd.grad(outputs[0].square().sum(), inputs)
        results.append([*outputs, *gradients])
    torch.testing.assert_close(*results)


@pytest.mark.plain
@BOTH
def test_one_graph_serves_lengths_that_are_not_known(need_weights):
    def run(query, key, keep):
        return scaled_dot_product_attention(
            query, key, key, mask=keep, is_causal=True,
            need_weights=need_weights,
        )[0]  # fmt: skip

    torch._dynamo.reset()
    compiled = torch.compile(
        run, fullgraph=True, backend="eager", dynamic=True
    )
    for queries, keys in ((4, 4), (6, 6), (2, 5), (3, 7)):
        query, key = torch.randn(2, queries, 8), torch.randn(2, keys, 8)
        keep = torch.rand(queries, keys) < 0.8
        torch.testing.assert_close(
            compiled(query, key, keep), run(query, key, keep)
        )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@BOTH
@pytest.mark.parametrize("mapped", ["inputs", "mask", "bias"])
def test_samples_and_their_gradients_can_be_mapped(mapped, need_weights):
    samples = small(5, 3, 4)
    masks = small(5, 3, 3) > 0
    masks[0, 1] = False
    biases = small(5, 3, 3)
    many = {"inputs": samples, "mask": masks, "bias": biases}[mapped]

    def run(one):
        options = {} if mapped == "inputs" else {mapped: one}
        x = one if mapped == "inputs" else samples[0]

        def loss(x):
            return scaled_dot_product_attention(
                x, x, x, **options, need_weights=need_weights
            )[0].sin().sum()  # fmt: skip

        return torch.func.grad(loss)(x)

    alone = torch.stack([run(one) for one in many])
    torch.testing.assert_close(torch.vmap(run)(many), alone)


@pytest.mark.parametrize("dim", [-1, 0])
def test_a_softmax_can_be_mapped_over_scores_and_masks(dim):
    scores, keep = small(3, 4, 5), torch.rand(3, 4, 5) < 0.7
    keep[0] = False

    def run(scores, keep):
        return masked_softmax(scores, keep, dim=dim)

    alone = torch.stack(list(map(run, scores, keep)))
    torch.testing.assert_close(torch.vmap(run)(scores, keep), alone)


@EACH_WAY
def test_shapes_are_known_without_numbers(way):
    def shapes(**kind):
        query, key = torch.empty(2, 3, 4, **kind), torch.empty(2, 5, 4, **kind)
        value = torch.empty(2, 5, 6, **kind)
        mask = torch.ones(3, 5, dtype=torch.bool, **kind)
        context, weights = way(query, key, value, mask=mask)
        assert weights is None or weights.shape == (2, 3, 5)
        return context.shape

    assert shapes(device="meta") == (2, 3, 6)
    with FakeTensorMode():
        assert shapes() == (2, 3, 6)
