"""Less time or memory: the same answer, or exactly the promised other."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import peak_memory
from torch.nn import functional as F

from attention_lib import _blockwise, efficient
from attention_lib.efficient import (
    blockwise_attention,
    linear_attention,
    online_softmax,
)
from attention_lib.masks import (
    block_sparse_mask,
    causal_mask,
    document_mask,
    padding_mask,
    sliding_window_mask,
)
from attention_lib.multihead import MultiHeadAttention

F64 = torch.float64
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def blockwise(*inputs, **options):
    """The context alone."""
    return blockwise_attention(*inputs, **options)[0]


def random(*shape, dtype=F64, grad=False):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def oracle(
    query, key, value, mask=None, bias=None, is_causal=False, scale=None,
    window=None,
):  # fmt: skip
    """Scores, softmax and product, one after the other in float64."""
    query, key, value = query.double(), key.double(), value.double()
    if query.dim() > 2 < key.dim() and 0 < key.shape[-3] < query.shape[-3]:
        group = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(group, -3) for t in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * scale
    lengths = scores.shape[-2:]
    ahead = torch.arange(lengths[1]) - torch.arange(lengths[0])[:, None]
    ahead = ahead - (lengths[1] - lengths[0])
    keep = ahead <= 0 if is_causal else torch.ones_like(ahead).bool()
    keep = keep if window is None else keep & (ahead.abs() < window)
    if mask is not None:
        if mask.dim() == 3 and scores.dim() == 4:
            mask = mask[:, None]
        keep = keep & mask
    scores = scores if bias is None else scores + bias.double()
    scores = scores.masked_fill(~keep, -math.inf)
    dead = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(dead, 0.0).softmax(-1)
    return weights.masked_fill(dead, 0.0) @ value


# --- the same answer, block by block -----------------------------------------


@st.composite
def problems(draw):
    """Random inputs: grouped heads or axes that broadcast, every mask."""
    lead = draw(st.lists(st.integers(1, 3), max_size=3))
    queries, keys = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    width, value_width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([F64] * 3 + [torch.float32, torch.half]))
    torch.manual_seed(draw(st.integers(0, 9999)))

    def ones(*shape):
        return [draw(st.sampled_from([1, size])) for size in shape]

    def tensor(*shape):
        strided = random(*shape[:-2], shape[-1], shape[-2]).mT
        values = strided if draw(st.booleans()) else strided.contiguous()
        return values.to(dtype).requires_grad_()

    own = list(lead)  # of the keys
    if len(lead) == 2 and draw(st.booleans()):  # (B, H)
        lead = [*lead[:-1], lead[-1] * draw(st.integers(2, 3))]
    elif draw(st.booleans()):
        own = ones(*lead)[draw(st.integers(0, len(lead))) :]
    options = {
        "is_causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 10)),
        "scale": draw(st.none() | st.floats(-2, 2)),
    }
    for name in draw(st.sets(st.sampled_from(["mask", "bias"]))):
        shape = ones(*lead, queries, keys)
        if name == "mask" and len(lead) == 2 and draw(st.booleans()):
            del shape[1]  # three axes beside four: one mask for each sample
        elif len(lead) != 2:
            shape = shape[draw(st.integers(0, len(lead) + 1)) :]
        options[name] = torch.rand(shape) > 0.4
    if "bias" in options:
        keep = options["bias"]
        bias = random(*keep.shape).masked_fill(~keep, -math.inf)
        options["bias"] = bias.to(dtype).requires_grad_()
    inputs = (
        tensor(*lead, queries, width),
        tensor(*own, keys, width),
        tensor(*own, keys, value_width),
    )
    return inputs, options


@settings(max_examples=400)
@given(problems(), st.integers(1, 10), st.sampled_from([4, 30, 200, 2**17]))
def test_blocks_give_context_and_gradients_of_the_formula(
    problem, block_size, limit
):
    """Blocks of many sizes, so that rows, heads and queries are cut too."""
    inputs, options = problem
    leaves = [*inputs, *([options["bias"]] if "bias" in options else [])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_blockwise, "_BLOCK_CPU", limit)
        context = blockwise(*inputs, **options, block_size=block_size)
        above = torch.randn_like(context)
        found = torch.autograd.grad(context, leaves, above)
    expected = oracle(*inputs, **options)
    right = torch.autograd.grad(
        expected, leaves, above.double(), materialize_grads=True
    )
    rounding = {F64: 1e-10, torch.float32: 1e-4, torch.half: 1e-2}
    for ours, theirs, like in zip(
        (context, *found), (expected, *right), (context, *leaves), strict=True
    ):
        assert ours.dtype == like.dtype
        size = rounding[like.dtype]
        torch.testing.assert_close(
            ours.double(), theirs.double(), atol=size, rtol=size
        )


@settings(max_examples=30)
@given(st.permutations(range(6)), st.integers(1, 6))
def test_blocks_may_come_in_any_order_and_of_any_size(order, size):
    """Whoever forgets to rescale is right only if the largest comes first."""
    torch.manual_seed(0)
    query, key, value = random(1, 3), random(6, 3) * 5, random(6, 2)
    key, value = key[list(order)], value[list(order)]
    scores = query @ key.mT
    blocks = zip(scores.split(size, -1), value.split(size), strict=True)
    context, logsumexp = online_softmax(blocks)
    torch.testing.assert_close(context, oracle(query, key, value, scale=1.0))
    torch.testing.assert_close(logsumexp, scores.logsumexp(-1, keepdim=True))


def test_the_chapters_loop_has_the_gradients_of_the_engine():
    """What you read, followed by autograd, is what runs."""
    inputs = [random(2, 7, 3, grad=True) for _ in "qkv"]
    seen = (torch.rand(2, 7, 7) > 0.4).index_fill(1, torch.tensor(2), False)

    def in_blocks(query, key, value):
        scores = (query @ key.mT / math.sqrt(3)).masked_fill(~seen, -math.inf)
        return online_softmax(
            zip(scores.split(2, -1), value.split(2, -2), strict=True)
        )[0]

    read, run = in_blocks(*inputs), blockwise(*inputs, mask=seen)
    torch.testing.assert_close(read, run)
    above = torch.randn_like(run)
    torch.testing.assert_close(
        torch.autograd.grad(read, inputs, above),
        torch.autograd.grad(run, inputs, above),
    )


def test_the_engine_runs_the_chapters_loop(monkeypatch):
    inputs = [random(5, 3) for _ in "qkv"]
    expected = blockwise(*inputs)

    def twice(blocks):
        context, logsumexp = online_softmax(blocks)
        return 2 * context, logsumexp

    monkeypatch.setattr(efficient, "online_softmax", twice)
    torch.testing.assert_close(blockwise(*inputs), 2 * expected)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e30])
def test_scores_of_any_size_do_not_overflow(size):
    query = torch.tensor([[1.0]], requires_grad=True)
    key = torch.tensor([[-size], [size], [0.0], [size]])
    value = torch.tensor([[7.0], [1.0], [9.0], [3.0]])
    context = blockwise(query, key, value, block_size=1)
    assert context.item() == 2.0
    context.sum().backward()
    assert query.grad.isfinite().all()


@HALVES
def test_half_precision_is_summed_in_single(dtype):
    """4,096 equal weights: a bfloat16 sum would stop at 256."""
    ones = torch.ones(1, 4096, 8, dtype=dtype)
    for attend in (blockwise, linear_attention):
        context = attend(ones[:, :1], ones, ones)
        assert context.dtype == dtype
        assert context.eq(1).all()
    large = torch.full((1, 3, 80), 256.0, dtype=dtype)
    assert blockwise(large, large, large).eq(256).all()


@pytest.mark.parametrize("attend", [blockwise, linear_attention])
def test_autocast_does_not_make_it_less_precise(attend):
    inputs = [random(9, 4, dtype=torch.float32, grad=True) for _ in "qkv"]
    contexts = [attend(*inputs, is_causal=True)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        contexts.append(attend(*inputs, is_causal=True))
    assert torch.equal(*contexts)
    found = [torch.autograd.grad(c.sum(), inputs) for c in contexts]
    assert all(map(torch.equal, *found))


def test_inputs_mask_and_bias_stay_as_they_are():
    parts = [random(5, 5, grad=True) for _ in "qkvb"]
    parts.append(torch.rand(5, 5) > 0.5)
    before = [part.detach().clone() for part in parts]
    *inputs, bias, mask = parts
    blockwise(*inputs, mask=mask, bias=bias).sum().backward()
    linear_attention(*inputs, mask=mask[0]).sum().backward()
    assert all(map(torch.equal, parts, before))


SOMETIMES = torch.tensor([[True, True, False], [True, False, True]])


@pytest.mark.parametrize(
    ("attend", "hidden"),
    [
        (linear_attention, {"mask": SOMETIMES[:1]}),
        (blockwise, {"mask": SOMETIMES[:1]}),
        (blockwise, {"mask": SOMETIMES[:1], "is_causal": True}),
        # The first query may see it, but for causality.
        (blockwise, {"mask": SOMETIMES.roll(1, 0), "is_causal": True}),
        (blockwise, {"bias": torch.tensor([0.0, 0.0, -math.inf])}),
    ],
)
def test_nan_that_nobody_may_see_changes_nothing(attend, hidden):
    query = random(2, 3, grad=True)
    clean = [random(3, 3, grad=True) for _ in "kv"]
    unseen = 2
    spoiled = [t.detach().clone() for t in clean]
    for tensor in spoiled:
        tensor[unseen] = math.nan
        tensor.requires_grad_()
    contexts = [attend(query, *pair, **hidden) for pair in (clean, spoiled)]
    assert torch.equal(*contexts)
    for context, pair in zip(contexts, (clean, spoiled), strict=True):
        for tensor in torch.autograd.grad(context.sum(), [query, *pair]):
            assert tensor.isfinite().all()


def test_a_query_that_sees_nothing_gets_0_whatever_the_values_hold():
    mask = torch.tensor([[False, False, False], [True, True, True]])
    value = random(3, 4).index_fill(0, torch.tensor(1), math.nan)
    context = blockwise(random(2, 4), random(3, 4), value, mask=mask)
    assert context[0].eq(0).all()


def test_it_stands_in_for_the_attention_of_a_layer():
    sizes = {"d_model": 12, "num_heads": 4, "num_kv_heads": 2}
    near = partial(blockwise_attention, window=3, block_size=4)
    usual = MultiHeadAttention(**sizes).double()
    layer = MultiHeadAttention(**sizes, attention=near).double()
    layer.load_state_dict(usual.state_dict())
    words, mask = random(2, 9, 12), padding_mask([9, 6])
    window = mask & sliding_window_mask(9, window=3)
    torch.testing.assert_close(
        layer(words, mask=mask, is_causal=True),
        usual(words, mask=window, is_causal=True),
    )


# --- derivatives and transforms ----------------------------------------------


def test_gradcheck():
    inputs = [random(2, n, 3, grad=True) for n in (5, 6, 6)]
    bias = random(5, 6, grad=True)
    options = {"mask": torch.rand(5, 6) > 0.3, "window": 4, "block_size": 2}
    assert torch.autograd.gradcheck(
        lambda bias, *i: blockwise(*i, bias=bias, **options), [bias, *inputs]
    )
    assert torch.autograd.gradcheck(
        lambda *i: linear_attention(*i, is_causal=True, chunk_size=2), inputs
    )


@pytest.mark.plain
def test_transforms_of_functions_give_what_they_give_of_the_formula():
    inputs, bias = [random(3, 2, 4, 3) for _ in "qkv"], random(2, 4, 4)
    mask = torch.rand(3, 4, 4) > 0.3

    def loss(attend, query, key, value, bias, mask):
        context = attend(query, key, value, bias=bias, mask=mask)
        return (context * context).sum()

    ours, theirs = (partial(loss, attend) for attend in (blockwise, oracle))
    each = torch.func.grad(ours, argnums=(0, 1, 2, 3))
    right = torch.func.grad(theirs, argnums=(0, 1, 2, 3))
    one = [t[0] for t in inputs]
    torch.testing.assert_close(
        each(*one, bias, mask[0]), right(*one, bias, mask[0])
    )
    sizes = {"in_dims": (0, 0, 0, None, 0)}
    torch.testing.assert_close(
        torch.vmap(each, **sizes)(*inputs, bias, mask),
        torch.vmap(right, **sizes)(*inputs, bias, mask),
    )


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_what_cannot_be_derived_is_refused_and_not_zero():
    inputs = [random(3, 2, grad=True) for _ in "qkv"]
    context = blockwise(*inputs)
    (grad,) = torch.autograd.grad(context.sum(), inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="need_weights=True"):
        grad.sum().backward()

    def slope(query):
        return blockwise(query, *inputs[1:]).sum()

    once = torch.func.grad(slope)
    with pytest.raises(NotImplementedError, match="need_weights=True"):
        torch.func.grad(lambda query: once(query).sum())(inputs[0])
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(slope, (inputs[0],), (inputs[0],))


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # theirs
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_without_a_break(dynamic):
    torch._dynamo.reset()
    inputs = [random(2, 5, 3, grad=True) for _ in "qkv"]
    bias, mask = random(5, 5, grad=True), torch.rand(2, 1, 5) > 0.2

    def loss(query, key, value, bias):
        context = blockwise(
            query, key, value, mask=mask, bias=bias, is_causal=True, window=3
        )
        return (context * context).sum()

    compiled = torch.compile(
        loss, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    leaves = [*inputs, bias]
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*leaves), leaves),
        torch.autograd.grad(loss(*leaves), leaves),
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), loss(*leaves))


@pytest.mark.plain
def test_the_operator_is_registered_as_torch_wants_it():
    job = random(2, 5, 2, 3), random(2, 5, 3), random(2, 5, 4), None, None
    job = (*job, True, 3, 2)
    context, logsumexp = _blockwise._run(*job, None, None, None)
    for back in ((None,) * 3, (torch.randn_like(context), context, logsumexp)):
        torch.library.opcheck(
            _blockwise._run,
            (*job, *back),
            test_utils=("test_schema", "test_faketensor"),
        )


def test_nothing_is_computed_where_there_are_no_values():
    inputs = [t.to("meta") for t in (random(2, 4, 3), *random(2, 2, 5, 3))]
    mask = torch.ones(2, 1, 5, dtype=torch.bool, device="meta")
    assert blockwise(*inputs, mask=mask[:1]).shape == (2, 4, 3)
    assert linear_attention(*inputs, mask=mask).shape == (2, 4, 3)


# --- what is saved -----------------------------------------------------------


@pytest.mark.parametrize("keys", [64, 90])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_that_nobody_may_see_are_never_computed(
    keys, is_causal, window, masked
):
    key, options = torch.zeros(1, keys, 1), (is_causal, window, 8)
    allowed = block_sparse_mask(torch.rand(8, 12) > 0.5, 8)[:, :keys]
    mask = allowed[None, :, None] if masked else None
    job = torch.zeros(1, 64, 1, 1), key, key, None, mask, *options
    seen = torch.zeros(64, keys, dtype=torch.bool)
    for (_, rows), blocks in _blockwise.Job(*job).walk():
        for (_, columns), scores in blocks:
            assert scores.isfinite().any()
            seen[rows, columns] = True
    if not masked:
        allowed = torch.ones(64, keys, dtype=torch.bool)
    if is_causal:
        allowed = allowed & causal_mask(64, keys)
    if window is not None:
        allowed = allowed & sliding_window_mask(64, keys, window=window)
    assert seen[allowed].all()


PADDED = {"mask": padding_mask([8000], 8192)[0], "is_causal": True}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("attend", "options"),
    [
        (blockwise, {}),
        (blockwise, {"is_causal": True, "window": 64}),
        (blockwise, PADDED),
        (linear_attention, PADDED),
    ],
)
def test_memory_is_that_of_some_more_inputs(attend, options, backward):
    """The scores would take 170 times as much as all inputs."""
    inputs = [random(8192, 16, dtype=torch.float32) for _ in "qkv"]
    inputs = [tensor.requires_grad_(backward) for tensor in inputs]

    def call():
        context = attend(*inputs, **options)
        return context.sum().backward() if backward else context

    blocks = 6 * 4 * _blockwise._BLOCK_CPU
    assert peak_memory(call) < 20 * inputs[0].nbytes + blocks


def test_no_key_is_copied_for_the_queries_that_share_it():
    query, key = random(1, 8, 1, 64), random(1, 2, 8192, 64)
    assert peak_memory(lambda: blockwise(query, key, key)) < key.nbytes / 4


# --- masks -------------------------------------------------------------------


@given(
    st.integers(0, 6),
    st.none() | st.integers(0, 6),
    st.integers(1, 8),
    st.none() | st.integers(-3, 3),
)
def test_a_window_is_a_distance(queries, keys, window, offset):
    mask = sliding_window_mask(queries, keys, window=window, offset=offset)
    keys = queries if keys is None else keys
    offset = keys - queries if offset is None else offset
    assert mask.shape == (queries, keys)
    for i, j in itertools.product(range(queries), range(keys)):
        assert mask[i, j] == (abs(i + offset - j) < window)


def test_a_layout_of_blocks_says_what_each_position_sees():
    layout = torch.rand(3, 4) > 0.5
    mask = block_sparse_mask(layout, 5, 13, 17)
    assert mask.shape == (13, 17)
    for i, j in itertools.product(range(13), range(17)):
        assert mask[i, j] == layout[i // 5, j // 5]
    assert block_sparse_mask(layout, 2).shape == (6, 8)


def test_documents_see_themselves_only():
    ids = torch.tensor([[4, 4, 9], [1, 0, 0]])
    apart = [
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 1, 1], [0, 1, 1]],
    ]
    assert document_mask(ids).int().tolist() == apart


# --- linear attention --------------------------------------------------------


@settings(max_examples=150)
@given(
    st.integers(0, 7),
    st.integers(0, 7),
    st.booleans(),
    st.booleans(),
    st.integers(1, 8),
)
def test_linear_attention_equals_its_weights_written_out(
    queries, keys, is_causal, masked, chunk_size
):
    query, key = random(2, 1, queries, 3), random(2, 3, keys, 3)
    value = random(2, 3, keys, 2)
    mask = (torch.rand(2, 1, 1, keys) > 0.4) if masked else None
    options = {"mask": mask, "is_causal": is_causal}
    context = linear_attention(
        query, key, value, **options, chunk_size=chunk_size
    )
    weights = (F.elu(query) + 1) @ (F.elu(key) + 1).mT
    weights = weights if mask is None else weights * mask
    weights = weights.tril(keys - queries) if is_causal else weights
    total = weights.sum(-1, keepdim=True)
    expected = weights / torch.where(total == 0, 1.0, total) @ value
    torch.testing.assert_close(context, expected)


def test_features_far_below_zero_still_sum_to_one():
    """There elu(x) + 1 is 0 in floating point, and exp(x) is not."""
    inputs = [torch.full((1, 1, 4), -20.0), torch.randn(1, 3, 4)]
    inputs.append(torch.eye(3)[None])
    weights = linear_attention(*inputs)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    precise = linear_attention(*(tensor.double() for tensor in inputs))
    torch.testing.assert_close(weights, precise.float())
