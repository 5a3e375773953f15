"""Two paths, one result: against float64, gradients included."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attention_lib import reference
from attention_lib.attention import scaled_dot_product_attention
from attention_lib.leaks import future_leak, padding_leak
from attention_lib.masks import causal_mask, padding_mask

F64 = torch.float64
BOTH = pytest.mark.parametrize("need_weights", [True, False])
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def oracle(query, key, value, mask=None, bias=None, is_causal=False,
           scale=None):  # fmt: skip
    """Compute context and weights in NumPy, every option spelt out."""
    query, key, value = (
        t.detach().double().numpy() for t in (query, key, value)
    )
    if scale is None:
        scale = 1 / np.sqrt(query.shape[-1])
    scores = scale * query @ np.swapaxes(key, -1, -2)
    keep = np.ones(scores.shape, dtype=bool)
    if mask is not None:
        keep = keep & mask.numpy()
    if is_causal:
        keep = np.tril(keep, key.shape[-2] - query.shape[-2])
    if bias is not None:
        bias = bias.detach().double().numpy()
        keep = keep & (bias != -np.inf)
        scores = scores + np.where(bias == -np.inf, 0.0, bias)
    weights = reference.softmax(scores, keep)
    return torch.from_numpy(weights @ value), torch.from_numpy(weights)


def differentiable(query, key, value, mask, bias, is_causal):
    """The same from pieces that autograd handles row by row."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias.double()
    keep = scores != -math.inf
    if mask is not None:
        keep = keep & mask
    if is_causal:
        keep = keep.tril(key.shape[-2] - query.shape[-2])
    exponentials = torch.where(keep, scores, 0.0).exp() * keep
    return (
        exponentials / exponentials.sum(-1, keepdim=True).clamp(1e-30) @ value
    )


@st.composite
def problems(draw, dtypes=(torch.float64,)):
    """Random inputs with every kind of mask and bias."""
    lengths = st.integers(0, 4)
    lead = draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
    queries, keys = draw(lengths), draw(lengths)
    width, value_width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))

    def tensor(*shape):
        return torch.randn(shape, generator=generator, dtype=F64).to(dtype)

    def scores_shape():
        shape = [draw(st.sampled_from([1, n])) for n in (*lead, queries, keys)]
        return shape[draw(st.integers(0, len(shape))) :]

    mask = bias = None
    if draw(st.booleans()):
        mask = torch.rand(scores_shape(), generator=generator) > 0.4
    if draw(st.booleans()):
        bias = tensor(*scores_shape())
        if draw(st.booleans()):
            hidden = torch.rand(bias.shape, generator=generator) > 0.6
            bias = bias.masked_fill(hidden, -math.inf)
    return (
        tensor(*lead, queries, width),
        tensor(*lead, keys, width),
        tensor(*lead, keys, value_width),
        {"mask": mask, "bias": bias, "is_causal": draw(st.booleans())},
    )


@settings(max_examples=200)
@given(problems(), st.none() | st.floats(-2, 2))
def test_both_paths_equal_the_reference(problem, scale):
    *inputs, options = problem
    context, weights = oracle(*inputs, **options, scale=scale)
    explicit = scaled_dot_product_attention(*inputs, **options, scale=scale)
    fused = scaled_dot_product_attention(
        *inputs, **options, scale=scale, need_weights=False
    )
    torch.testing.assert_close(explicit, (context, weights))
    torch.testing.assert_close(fused[0], context)
    assert fused[1] is None


@settings(max_examples=100)
@given(problems(dtypes=(torch.float16, torch.bfloat16, torch.float32)))
def test_other_types_round_the_result_only(problem):
    *inputs, options = problem
    expected = oracle(*inputs, **options)
    dtype = inputs[0].dtype
    # Where large values cancel, the last place of the large ones counts.
    largest = max(map(abs, inputs[2].flatten().tolist()), default=0.0)
    close = {
        "rtol": max(1.3e-6, 2 * torch.finfo(dtype).eps),
        "atol": max(1e-5, torch.finfo(dtype).eps * largest),
    }
    for need_weights in (True, False):
        got = scaled_dot_product_attention(
            *inputs, **options, need_weights=need_weights
        )
        for mine, right in zip(got, expected, strict=True):
            if mine is not None:
                assert mine.dtype == dtype
                torch.testing.assert_close(mine, right.to(dtype), **close)


@settings(max_examples=100)
@given(problems())
def test_gradients_of_both_paths_are_right_and_finite(problem):
    *inputs, options = problem
    for tensor in inputs:
        tensor.requires_grad_()
    bias = options["bias"]
    if bias is not None:
        inputs.append(bias.requires_grad_())
    right = differentiable(*inputs[:3], **options)
    direction = torch.randn(right.shape, dtype=F64)
    expected = torch.autograd.grad(
        right, inputs, direction, allow_unused=True, materialize_grads=True
    )
    for need_weights in (True, False):
        context, _ = scaled_dot_product_attention(
            *inputs[:3], **options, need_weights=need_weights
        )
        got = torch.autograd.grad(
            context, inputs, direction, materialize_grads=True
        )
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kind", ["none", "mask", "dead", "causal", "bias"])
@BOTH
def test_gradcheck(need_weights, kind):
    inputs = [
        torch.randn(2, n, d, dtype=F64, requires_grad=True)
        for n, d in ((3, 2), (4, 2), (4, 3))
    ]
    mask = torch.rand(3, 4) > 0.3
    if kind == "dead":
        mask[1] = False
    bias = torch.randn(3, 4, dtype=F64, requires_grad=True)
    options = {
        "none": {},
        "mask": {"mask": mask},
        "dead": {"mask": mask},
        "causal": {"is_causal": True},
        "bias": {"mask": mask},
    }[kind]

    def run(*tensors):
        extra = {"bias": tensors[3]} if len(tensors) > 3 else {}
        outputs = scaled_dot_product_attention(
            *tensors[:3], **options, **extra, need_weights=need_weights
        )
        return tuple(part for part in outputs if part is not None)

    if kind == "bias":
        inputs.append(bias)
    assert torch.autograd.gradcheck(run, inputs)


@BOTH
def test_long_rows_whose_first_blocks_are_masked(need_weights):
    """A kernel works in blocks, and a block may hold no key at all."""
    query, key, value = torch.randn(3, 1, 2, 1100, 8, dtype=F64)
    mask = torch.zeros(1100, 1100, dtype=torch.bool)
    mask[:700, 900:] = True
    mask[900:, 5] = True
    expected, _ = oracle(query, key, value, mask=mask)
    got, _ = scaled_dot_product_attention(
        query, key, value, mask=mask, need_weights=need_weights
    )
    torch.testing.assert_close(got, expected)


# --- rows with nothing to attend to ----------------------------------------


@BOTH
def test_a_dead_row_gives_zeros(need_weights):
    """pytorch/pytorch #103963."""
    mask = torch.tensor([[True, True, False], [False] * 3])
    context, weights = scaled_dot_product_attention(
        torch.zeros(2, 1),
        torch.zeros(3, 1),
        torch.tensor([[1.0], [2.0], [6.0]]),
        mask=mask,
        need_weights=need_weights,
    )
    assert context.tolist() == [[1.5], [0.0]]
    if need_weights:
        assert weights.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("way", ["mask", "bias", "both", "causal"])
@BOTH
def test_a_dead_row_poisons_no_gradient(need_weights, way):
    """pytorch/pytorch #41508: one NaN row spread over the whole batch."""
    keys = 2 if way == "causal" else 4
    query = torch.randn(2, 4, 3, requires_grad=True)
    key = torch.randn(2, keys, 3, requires_grad=True)
    value = torch.randn(2, keys, 3, requires_grad=True)
    keep = torch.ones(2, 4, keys, dtype=torch.bool)
    keep[1, 2] = False
    half = torch.zeros(2, 4, keys)
    options = {
        "mask": {"mask": keep},
        "bias": {"bias": half.masked_fill(~keep, -math.inf)},
        "both": {
            "mask": keep | (torch.arange(keys) < 2),
            "bias": half.masked_fill(torch.arange(keys) < 2, -math.inf),
        },
        "causal": {"is_causal": True},
    }[way]
    context, weights = scaled_dot_product_attention(
        query, key, value, **options, need_weights=need_weights
    )
    dead = (0, 0) if way == "causal" else (1, 2)
    assert context[dead].abs().max() == 0
    if need_weights:
        assert weights[dead].abs().max() == 0
        assert (weights.sum(-1)[0, -1] - 1).abs() < 1e-6
    context.sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
    assert query.grad[dead].abs().max() == 0
    assert value.grad.abs().max() > 0


@BOTH
def test_a_head_without_any_key_leaves_the_others_alone(need_weights):
    """pytorch/pytorch #160064."""
    query, key, value = torch.randn(3, 1, 3, 5, 1)
    mask = torch.ones(3, 5, 5, dtype=torch.bool)
    mask[2] = False
    context, weights = scaled_dot_product_attention(
        query, key, value, mask=mask, need_weights=need_weights
    )
    expected, _ = oracle(query, key, value)
    torch.testing.assert_close(context[:, :2].double(), expected[:, :2])
    assert context[:, 2].abs().max() == 0
    if need_weights:
        assert weights[:, 2].abs().max() == 0
        torch.testing.assert_close(weights[:, :2].sum(-1), torch.ones(1, 2, 5))


@pytest.mark.parametrize("shape", [
    (0, 3, 3, 4, 4), (2, 0, 3, 4, 4), (2, 3, 0, 4, 2), (2, 0, 0, 4, 4),
    (2, 3, 3, 4, 0), (2, 3, 3, 0, 4),
])  # fmt: skip
@pytest.mark.parametrize("is_causal", [True, False])
@BOTH
def test_empty_sizes_keep_their_shapes(need_weights, is_causal, shape):
    """pytorch/pytorch #192651, #188765."""
    batch, queries, keys, width, value_width = shape
    query = torch.randn(batch, queries, width, requires_grad=True)
    key = torch.randn(batch, keys, width, requires_grad=True)
    value = torch.randn(batch, keys, value_width, requires_grad=True)
    context, weights = scaled_dot_product_attention(
        query,
        key,
        value,
        mask=torch.ones(batch, 1, keys, dtype=torch.bool),
        bias=torch.zeros(queries, keys),
        is_causal=is_causal,
        need_weights=need_weights,
    )
    assert context.shape == (batch, queries, value_width)
    assert weights is None or weights.shape == (batch, queries, keys)
    if keys == 0:
        assert not context.any()
    context.sum().backward()
    assert query.grad.shape == query.shape


# --- numbers of any size ---------------------------------------------------


@HALVES
@pytest.mark.parametrize("value_width", [80, 40])
@pytest.mark.parametrize("masked", [False, True])
@BOTH
def test_products_beyond_half_precision(
    need_weights, dtype, value_width, masked
):
    """pytorch/pytorch #160841: 256 * 256 * 80 is above 65504."""
    query = torch.full((2, 3, 80), 256.0, dtype=dtype)
    value = torch.full((2, 3, value_width), 256.0, dtype=dtype)
    context, _ = scaled_dot_product_attention(
        query,
        query,
        value,
        mask=causal_mask(3) if masked else None,
        need_weights=need_weights,
    )
    assert (context == 256).all()


@HALVES
@pytest.mark.parametrize("extra", ["dropout", "bias", "trained bias"])
@BOTH
def test_products_beyond_half_precision_without_a_kernel(
    need_weights, dtype, extra
):
    query = torch.full((1, 4, 80), 256.0, dtype=dtype)
    value = torch.ones(1, 4, 80, dtype=dtype)
    options = {
        "dropout": {"dropout_p": 0.5},
        "bias": {"bias": torch.tensor([0.0, 0.0, -1e6, -1e6])},
        "trained bias": {"bias": torch.zeros(4, 4, requires_grad=True)},
    }[extra]
    context, _ = scaled_dot_product_attention(
        query, query, value, **options, need_weights=need_weights
    )
    assert context.isfinite().all()
    if extra == "dropout":
        assert set(context.unique().tolist()) <= {0, 0.5, 1, 1.5, 2}
    else:
        assert (context == 1).all()


@BOTH
def test_a_bias_beyond_half_precision_is_not_rounded(need_weights):
    query = torch.zeros(1, 1, dtype=torch.float16)
    value = torch.tensor([[1.0], [3.0]], dtype=torch.float16)
    context, _ = scaled_dot_product_attention(
        query,
        torch.zeros(2, 1, dtype=torch.float16),
        value,
        bias=torch.tensor([100000.0, 100000.0 + math.log(3)]),
        need_weights=need_weights,
    )
    assert context.item() == pytest.approx(2.5, abs=0.01)


@HALVES
@BOTH
def test_autocast_does_not_lower_the_precision(need_weights, dtype):
    query = torch.full((1, 1, 3, 80), 256.0)
    with torch.autocast("cpu", dtype=dtype):
        context, _ = scaled_dot_product_attention(
            query, query, query, need_weights=need_weights
        )
    assert context.dtype == torch.float32
    assert (context == 256).all()


@BOTH
def test_autocast_forgets_no_option(need_weights):
    inputs = [torch.randn(2, 3, 4, 5) for _ in range(3)]
    for options in (
        {"mask": torch.rand(4, 4) < 0.5},
        {"bias": torch.randn(4, 4)},
        {"is_causal": True},
        {"scale": 3.0},
        {"dropout_p": 1.0},
    ):
        expected = scaled_dot_product_attention(
            *inputs, **options, need_weights=need_weights
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = scaled_dot_product_attention(
                *inputs, **options, need_weights=need_weights
            )
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "value_width", "options"),
    [
        (torch.float16, 8, {}),
        (torch.float16, 8, {"is_causal": True}),
        (torch.bfloat16, 5, {}),
        (torch.bfloat16, 8, {"bias": torch.randn(30, 40)}),
    ],
)
def test_half_types_are_widened_where_their_kernel_is_not_trusted(
    dtype, value_width, options
):
    """The kernel of PyTorch 2.6 let scores in float16 overflow."""
    query, key = torch.randn(2, 30, 8), torch.randn(2, 40, 8)
    inputs = [
        t.to(dtype) for t in (query, key, torch.randn(2, 40, value_width))
    ]
    context, _ = scaled_dot_product_attention(
        *inputs, **options, need_weights=False
    )
    expected, _ = scaled_dot_product_attention(
        *(t.float() for t in inputs), **options, need_weights=False
    )
    assert context.dtype == dtype
    assert torch.equal(context, expected.to(dtype))


@BOTH
def test_masked_scores_may_be_larger_than_the_kept_ones(need_weights):
    """d2l fills -1e6, which is not below every score."""
    context, _ = scaled_dot_product_attention(
        torch.full((1, 1), -2e6),
        torch.ones(3, 1),
        torch.eye(3),
        mask=padding_mask([2], 3)[0],
        scale=1.0,
        need_weights=need_weights,
    )
    assert context.tolist() == [[0.5, 0.5, 0.0]]


@HALVES
@BOTH
def test_masks_work_in_half_precision(need_weights, dtype):
    """fairseq #3575, flax #982: -1e9 has no place there."""
    eye = torch.eye(2, dtype=dtype)
    context, _ = scaled_dot_product_attention(
        torch.zeros(2, 2, dtype=dtype),
        eye,
        eye,
        is_causal=True,
        need_weights=need_weights,
    )
    assert context.tolist() == [[1.0, 0.0], [0.5, 0.5]]


# --- causal ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "rows"),
    [
        (1, [[1 / 4] * 4]),
        (2, [[1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4]),
    ],
)
@BOTH
def test_the_last_query_sees_every_key(need_weights, queries, rows):
    """pytorch/pytorch #103082, #108108, #110144."""
    context, _ = scaled_dot_product_attention(
        torch.zeros(1, 1, queries, 2),
        torch.randn(1, 1, 4, 2),
        torch.eye(4)[None, None],
        is_causal=True,
        need_weights=need_weights,
    )
    torch.testing.assert_close(context[0, 0], torch.tensor(rows))


@BOTH
def test_two_cached_steps_equal_one_of_two_tokens(need_weights):
    """hyprstream #1521."""
    query, key, value = torch.randn(3, 1, 2, 5, 4, dtype=F64)

    def step(first, last):
        return scaled_dot_product_attention(
            query[:, :, first:last],
            key[:, :, :last],
            value[:, :, :last],
            is_causal=True,
            need_weights=need_weights,
        )[0]

    one_by_one = torch.cat([step(3, 4), step(4, 5)], dim=2)
    torch.testing.assert_close(step(3, 5), one_by_one)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout_p": 0.5},
        {"mask": torch.ones(6, 6, dtype=torch.bool)},
        {"bias": torch.zeros(6, 6)},
    ],
)
@pytest.mark.parametrize("axes", [2, 3, 4, 5])
def test_no_path_leaks_the_future(options, axes):
    """keras #23038, pytorch/pytorch #99282."""
    shape = (2,) * (axes - 2) + (6, 3)
    query = torch.randn(shape)
    eye = torch.eye(6).expand(*shape[:-2], 6, 6)
    context, weights = scaled_dot_product_attention(
        query, query, eye, is_causal=True, **options
    )
    fused, _ = scaled_dot_product_attention(
        query, query, eye, is_causal=True, need_weights=False, **options
    )
    for looked_at in (context, weights, fused):
        assert looked_at.triu(1).abs().max() == 0


def test_causal_and_padding_hold_together():
    """fairseq #537: causal does not hide pads on the left."""
    left = padding_mask([2, 3], 3, side="left")
    for need_weights in (True, False):
        context, _ = scaled_dot_product_attention(
            torch.zeros(2, 3, 1),
            torch.zeros(2, 3, 1),
            torch.eye(3).expand(2, 3, 3),
            mask=left,
            is_causal=True,
            need_weights=need_weights,
        )
        assert context[0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]]


@BOTH
def test_the_detectors_find_nothing(need_weights):
    lengths = [4, 2, 5]
    mask = padding_mask(lengths)

    def causal(x):
        return scaled_dot_product_attention(
            x, x, x, mask=mask, is_causal=True, need_weights=need_weights
        )

    inputs = torch.randn(3, 5, 4)
    assert not future_leak(causal, inputs)
    assert not padding_leak(causal, inputs, lengths)


# --- masks in their shapes -------------------------------------------------


@BOTH
def test_padding_belongs_to_samples_not_to_heads(need_weights):
    """keras-hub #783: only wrong when B == H, where shapes cannot tell."""
    zeros = torch.zeros(2, 2, 2, 1)
    eye = torch.eye(2).expand(2, 2, 2, 2)
    mask = padding_mask([2, 1])[:, None]
    context, _ = scaled_dot_product_attention(
        zeros, zeros, eye, mask=mask, need_weights=need_weights
    )
    assert context[0, :, 0].tolist() == [[0.5, 0.5]] * 2
    assert context[1, :, 0].tolist() == [[1.0, 0.0]] * 2


@BOTH
def test_a_padded_query_keeps_its_keys(need_weights):
    """pytorch/pytorch #63271; annotated-transformer #137."""
    mask = padding_mask([4], 5)
    context, _ = scaled_dot_product_attention(
        torch.zeros(1, 5, 1),
        torch.zeros(1, 5, 1),
        torch.eye(5)[None],
        mask=mask,
        is_causal=True,
        need_weights=need_weights,
    )
    assert context[0, -1].tolist() == [0.25] * 4 + [0.0]


def test_masked_weights_still_sum_to_one():
    """pytorch-image-models #2236: masked after the softmax."""
    _, weights = scaled_dot_product_attention(
        torch.zeros(1, 1),
        torch.zeros(3, 1),
        torch.eye(3),
        mask=padding_mask([2], 3)[0],
    )
    assert weights.tolist() == [[0.5, 0.5, 0.0]]


@BOTH
def test_true_means_keep(need_weights):
    """rasbt/LLMs-from-scratch #1061."""
    context, _ = scaled_dot_product_attention(
        torch.zeros(1, 1),
        torch.zeros(3, 1),
        torch.tensor([[1.0], [2.0], [9.0]]),
        mask=torch.tensor([True, True, False]),
        need_weights=need_weights,
    )
    assert context.item() == 1.5


@BOTH
def test_a_batch_of_one_equals_its_row_in_a_padded_batch(need_weights):
    """OpenNMT-py #272, tensorflow #512, pytorch/tutorials #593."""
    encoder = torch.tensor([[[1.0], [3.0], [0.0]], [[5.0], [5.0], [5.0]]])
    context, _ = scaled_dot_product_attention(
        torch.zeros(2, 1, 1),
        encoder,
        encoder,
        mask=padding_mask([2, 3]),
        need_weights=need_weights,
    )
    assert context[0].item() == 2.0


@BOTH
def test_leading_axes_broadcast(need_weights):
    query = torch.randn(2, 3, 4, 5, dtype=F64)
    key = torch.randn(2, 1, 6, 5, dtype=F64)
    value = torch.randn(6, 7, dtype=F64)
    got, _ = scaled_dot_product_attention(
        query, key, value, is_causal=True, need_weights=need_weights
    )
    expected, _ = oracle(
        query,
        key.expand(2, 3, 6, 5),
        value.expand(2, 3, 6, 7),
        is_causal=True,
    )
    torch.testing.assert_close(got, expected)


@BOTH
def test_memory_layout_does_not_matter(need_weights):
    packed = torch.randn(2, 5, 3, 4, 6, dtype=F64)
    query, key, value = packed.permute(2, 0, 3, 1, 4)
    mask = (torch.rand(10, 10) > 0.4)[::2, ::2].mT
    options = {"mask": mask, "need_weights": need_weights}
    strided = scaled_dot_product_attention(query, key, value, **options)
    plain = scaled_dot_product_attention(
        query.contiguous(), key.contiguous(), value.contiguous(),
        mask=mask.contiguous(), need_weights=need_weights,
    )  # fmt: skip
    torch.testing.assert_close(strided, plain)


@BOTH
def test_nothing_is_written_to(need_weights):
    inputs = [torch.randn(2, 3, 4) for _ in range(3)]
    options = {
        "mask": torch.rand(3, 3) > 0.5,
        "bias": torch.randn(2, 3, 3),
    }
    options["mask"][1] = False
    everything = [*inputs, *options.values()]
    kept = [tensor.clone() for tensor in everything]
    for count in range(3):
        chosen = dict(list(options.items())[:count])
        scaled_dot_product_attention(
            *inputs, **chosen, is_causal=True, need_weights=need_weights
        )
    assert all(map(torch.equal, everything, kept))


# --- dropout ---------------------------------------------------------------


def test_returned_weights_are_those_before_dropout():
    """pytorch/pytorch #42929."""
    query = torch.randn(4, 5, 3)
    _, plain = scaled_dot_product_attention(query, query, query)
    _, weights = scaled_dot_product_attention(
        query, query, query, dropout_p=0.9
    )
    assert torch.equal(weights, plain)


@BOTH
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_drops_each_weight_independently(need_weights, masked):
    """The context of an identity value is the dropped weights."""
    dropout_p, keys = 0.2, 4
    query = torch.zeros(2000, 1, 3, 2)
    eye = torch.eye(keys).expand(2000, 1, keys, keys)
    mask = torch.tensor([True, True, False, True]) if masked else None
    count = 3 if masked else 4
    dropped, _ = scaled_dot_product_attention(
        query,
        torch.zeros(2000, 1, keys, 2),
        eye,
        mask=mask,
        dropout_p=dropout_p,
        need_weights=need_weights,
    )
    if masked:
        assert dropped[..., 2].abs().max() == 0
        dropped = dropped[..., mask]
    kept = dropped > 0
    torch.testing.assert_close(
        dropped[kept],
        torch.full_like(dropped[kept], 1 / count / (1 - dropout_p)),
    )
    share = kept.double().mean((0, 1, 2))
    assert (share - (1 - dropout_p)).abs().max() < 0.02
    flat = kept.double().reshape(-1, count)
    correlation = torch.corrcoef(flat.mT) - torch.eye(count)
    assert correlation.abs().max() < 0.06
    assert not torch.equal(kept[:, :, 0], kept[:, :, 1])


@BOTH
def test_dropping_everything_gives_zeros(need_weights):
    query = torch.randn(2, 3, 4)
    context, _ = scaled_dot_product_attention(
        query, query, query, dropout_p=1.0, need_weights=need_weights
    )
    assert not context.any()


# --- compilers, transforms, devices ----------------------------------------


@pytest.mark.plain
@pytest.mark.parametrize("option", ["none", "mask", "bias", "causal"])
@BOTH
def test_it_compiles_into_one_graph(need_weights, option):
    options = {
        "none": {},
        "mask": {"mask": torch.tensor([[True, False, True], [False] * 3])},
        "bias": {"bias": torch.tensor([0.0, -math.inf, 1.0])},
        "causal": {"is_causal": True, "mask": padding_mask([0, 3])[:, None]},
    }[option]

    def run(query, key, value):
        return scaled_dot_product_attention(
            query, key, value, **options, need_weights=need_weights
        )

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    inputs = [
        torch.randn(2, 2, n, 4, dtype=F64, requires_grad=True)
        for n in (2, 3, 3)
    ]
    mine, right = compiled(*inputs), run(*inputs)
    torch.testing.assert_close(mine, right)
    gradients = [
        torch.autograd.grad(context.square().sum(), inputs)
        for context in (mine[0], right[0])
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.plain
@BOTH
def test_it_compiles_for_lengths_that_are_not_known(need_weights):
    def run(query, key):
        return scaled_dot_product_attention(
            query, key, key, is_causal=True, need_weights=need_weights
        )[0]

    compiled = torch.compile(
        run, fullgraph=True, backend="eager", dynamic=True
    )
    for queries, keys in ((4, 4), (6, 6), (2, 5), (3, 7)):
        query, key = torch.randn(2, queries, 8), torch.randn(2, keys, 8)
        torch.testing.assert_close(compiled(query, key), run(query, key))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@BOTH
def test_it_can_be_mapped_over_a_batch(need_weights):
    query, key, value = torch.randn(3, 4, 2, 3, 5)
    mask = torch.rand(3, 3) > 0.5

    def run(*inputs):
        return scaled_dot_product_attention(
            *inputs, mask=mask, need_weights=need_weights
        )[0]

    mapped = torch.func.vmap(run)(query, key, value)
    torch.testing.assert_close(mapped, run(query, key, value))


def test_shapes_can_be_inferred_without_numbers():
    query = torch.empty(2, 3, 4, device="meta")
    for need_weights in (True, False):
        context, _ = scaled_dot_product_attention(
            query,
            query,
            query,
            mask=torch.ones(3, 3, dtype=torch.bool, device="meta"),
            is_causal=True,
            need_weights=need_weights,
        )
        assert context.shape == (2, 3, 4)


# --- wrong calls -----------------------------------------------------------

GOOD = {"query": (2, 3, 4), "key": (2, 5, 4), "value": (2, 5, 6)}


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"key": (2, 5, 3)}, ValueError, r"query and key.*width.*\(2, 5, 3\)"),
        ({"value": (2, 6, 6)}, ValueError, r"key and value.*length.*6, 6"),
        ({"key": (3, 5, 4)}, ValueError, r"axes before.*\(3, 5, 4\)"),
        ({"query": (4,)}, ValueError, r"query must have at least two.*4,"),
        ({"value": (5,)}, ValueError, "value must have at least two"),
        (
            {"query": [[1.0]]},
            TypeError,
            "query must be a torch.Tensor",
        ),
        (
            {"key": torch.int64},
            TypeError,
            "key must be of a floating",
        ),
        ({"value": F64}, TypeError, "share one type.*float64"),
        ({"key": "meta"}, ValueError, "key is on meta but query is on cpu"),
        ({"mask": torch.ones(3, 5)}, TypeError, r"mask must be boolean"),
        ({"mask": torch.ones(3, 5)}, TypeError, r"mask\.bool\(\)"),
        ({"mask": torch.tensor([3, 5])}, TypeError, "got torch.int64"),
        ({"mask": [[True]]}, TypeError, "mask must be a boolean tensor"),
        ({"bias": torch.ones(3, 5, dtype=torch.bool)}, TypeError, "mean mask"),
        ({"bias": 1.0}, TypeError, "bias must be a tensor, got float"),
        ({"scale": "1"}, TypeError, "scale must be a number, got '1'"),
        ({"scale": True}, TypeError, "scale must be a number, got True"),
        ({"scale": torch.ones(())}, TypeError, "scale must be a number"),
        ({"dropout_p": -0.1}, ValueError, "dropout_p must be between 0"),
        ({"dropout_p": 1.1}, ValueError, "got 1.1"),
        ({"dropout_p": math.nan}, ValueError, "dropout_p"),
        ({"dropout_p": None}, TypeError, "dropout_p must be a number"),
        ({"dropout_p": True}, TypeError, "dropout_p must be a number"),
    ],
)
@BOTH
def test_wrong_calls_are_refused_by_name(need_weights, change, error, words):
    arguments = {name: torch.randn(shape) for name, shape in GOOD.items()}
    for name, wrong in change.items():
        if isinstance(wrong, tuple):
            wrong = torch.randn(wrong)
        elif name in GOOD and isinstance(wrong, torch.dtype | str):
            wrong = arguments[name].to(wrong)
        arguments[name] = wrong
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(**arguments, need_weights=need_weights)


@pytest.mark.plain
@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize(
    "shape",
    [(3, 4), (2, 5), (4, 5), (3, 3, 5), (1, 2, 3, 5), (5, 3), (3, 1, 5)],
)
@BOTH
def test_masks_that_do_not_fit_are_refused(need_weights, shape, name):
    inputs = [torch.randn(shape) for shape in GOOD.values()]
    tensor = torch.ones(shape, dtype=torch.bool)
    if name == "bias":
        tensor = tensor.float()
    numbers = ".*".join(map(str, shape))
    with pytest.raises(ValueError, match=rf"{name} of.*{numbers}.*2, 3, 5"):
        scaled_dot_product_attention(
            *inputs, **{name: tensor}, need_weights=need_weights
        )


@pytest.mark.plain
def test_a_key_longer_than_its_value_is_refused():
    """pytorch/pytorch #193728: a kernel reads past the buffer."""
    for need_weights, (keys, values) in itertools.product(
        (True, False), ((5, 6), (6, 5), (1, 6), (6, 1))
    ):
        with pytest.raises(ValueError, match=r"key and value.*same length"):
            scaled_dot_product_attention(
                torch.randn(1, 1, 3, 8),
                torch.randn(1, 1, keys, 8),
                torch.randn(1, 1, values, 8),
                need_weights=need_weights,
            )


@pytest.mark.plain
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_mask_on_another_device_is_refused(name):
    inputs = [torch.randn(shape) for shape in GOOD.values()]
    tensor = torch.zeros(3, 5, dtype=torch.bool, device="meta")
    if name == "bias":
        tensor = tensor.float()
    with pytest.raises(ValueError, match=f"{name} is on meta, query on cpu"):
        scaled_dot_product_attention(*inputs, **{name: tensor})


def test_the_kernel_is_used_when_nobody_wants_the_weights(monkeypatch):
    calls = []
    kernel = F.scaled_dot_product_attention

    def spy(*args, **kwargs):
        calls.append([tensor.shape for tensor in args])
        return kernel(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for shape in ((3, 4), (2, 3, 4), (2, 5, 3, 4), (2, 2, 5, 3, 4)):
        query = torch.randn(shape)
        scaled_dot_product_attention(query, query, query)
        assert not calls
        scaled_dot_product_attention(query, query, query, need_weights=False)
        (shapes,) = calls
        assert all(len(shape) == 4 for shape in shapes)
        calls.clear()


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e-50, 1e-3])
def test_a_causal_kernel_takes_any_scale(scale):
    """PyTorch's multiplies its own mask of minus infinity by the scale."""
    inputs = [torch.randn(2, 5, 4, requires_grad=True) for _ in range(3)]
    (ours, _), (theirs, _) = (
        scaled_dot_product_attention(
            *inputs, is_causal=True, scale=scale, need_weights=wanted
        )
        for wanted in (False, True)
    )
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(
        *(torch.autograd.grad(out.square().sum(), inputs)
          for out in (ours, theirs)),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_row_with_no_key_is_zero_whatever_the_values_hold(need_weights):
    mask = torch.tensor([[False, False, False], [True, False, True]])
    value = torch.randn(3, 4)
    value[1] = torch.nan
    context, _ = scaled_dot_product_attention(
        torch.randn(2, 4),
        torch.randn(3, 4),
        value,
        mask=mask,
        need_weights=need_weights,
    )
    assert context[0].eq(0).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("option", ["mask", "bias"])
def test_masks_and_biases_of_single_samples_go_through_vmap(
    option, need_weights
):
    inputs = [torch.randn(3, 4) for _ in range(3)]
    many = torch.randn(5, 3, 3)
    if option == "mask":
        many = many > 0
        many[0, 1] = False

    def run(one):
        return scaled_dot_product_attention(
            *inputs, **{option: one}, need_weights=need_weights
        )[0]

    torch.testing.assert_close(
        torch.vmap(run)(many), torch.stack([run(one) for one in many])
    )
