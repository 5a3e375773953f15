"""Less time or memory: the same answer, or exactly the promised other."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attention_lib import efficient, reference
from attention_lib.attention import scaled_dot_product_attention
from attention_lib.cache import KVCache
from attention_lib.efficient import blockwise_attention, linear_attention
from attention_lib.leaks import future_leak
from attention_lib.masks import (
    block_sparse_mask,
    causal_mask,
    padding_mask,
    sliding_window_mask,
)
from attention_lib.multihead import AttentionCache, MultiHeadAttention
from attention_lib.transformer import LanguageModel

F64 = torch.float64
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def plain(*inputs, window=None, mask=None, **options):
    """The explicit path, with a window turned into a mask."""
    if window is not None:
        band = sliding_window_mask(
            inputs[0].shape[-2], inputs[1].shape[-2], window=window
        )
        mask = band if mask is None else mask & band
    return scaled_dot_product_attention(*inputs, mask=mask, **options)[0]


def random(*shape, dtype=F64, grad=False):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


@pytest.fixture(params=[8, 60, 2**18], ids="block of {}".format)
def limit(request, monkeypatch):
    """Blocks of many sizes, so that rows and queries are cut too."""
    monkeypatch.setattr(efficient, "_BLOCK_CPU", request.param)
    return request.param


# --- blockwise attention: the same answer ------------------------------------


@st.composite
def problems(draw, dtype=F64):
    """Random inputs that broadcast, with every kind of mask."""
    lengths = st.integers(0, 9)
    lead = draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
    queries, keys = draw(lengths), draw(lengths)
    width, value_width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))

    def tensor(*tail):
        mine = [draw(st.sampled_from([1, n])) for n in lead]
        shape = (*mine[draw(st.integers(0, len(mine))) :], *tail)
        values = torch.randn(shape, generator=generator, dtype=F64)
        return values.to(dtype).requires_grad_()

    mask = None
    inputs = (
        tensor(queries, width),
        tensor(keys, width),
        tensor(keys, value_width),
    )
    leading = torch.broadcast_shapes(*(t.shape[:-2] for t in inputs[:2]))
    if draw(st.booleans()):
        shape = [draw(st.sampled_from([1, n])) for n in (*leading, queries)]
        shape = [*shape, draw(st.sampled_from([1, keys]))]
        shape = shape[draw(st.integers(0, len(shape))) :]
        mask = torch.rand(shape, generator=generator) > 0.4
    options = {
        "mask": mask,
        "is_causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 10)),
        "scale": draw(st.none() | st.floats(-2, 2)),
    }
    return inputs, options


@settings(max_examples=300)
@given(problems(), st.integers(1, 10), st.sampled_from([4, 30, 2**18]))
def test_blocks_give_the_context_and_gradients_of_the_plain_form(
    problem, block_size, limit
):
    inputs, options = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficient, "_BLOCK_CPU", limit)
        context = blockwise_attention(
            *inputs, **options, block_size=block_size
        )
        expected = plain(*inputs, **options)
        torch.testing.assert_close(context, expected)
        above = torch.randn_like(expected)
        found = torch.autograd.grad(context, inputs, above)
    right = torch.autograd.grad(expected, inputs, above, allow_unused=True)
    for ours, theirs, tensor in zip(found, right, inputs, strict=True):
        theirs = torch.zeros_like(tensor) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs)


def test_blocks_agree_with_numpy_in_double_precision(limit):
    query, key, value = random(7, 3), random(9, 3), random(9, 2)
    mask = torch.rand(7, 9) > 0.5
    expected, _ = reference.attention(
        query.numpy(), key.numpy(), value.numpy(), mask.numpy()
    )
    context = blockwise_attention(query, key, value, mask=mask, block_size=4)
    torch.testing.assert_close(context, torch.from_numpy(expected))


def test_gradcheck(limit):
    inputs = [random(2, n, 3, grad=True) for n in (5, 6, 6)]
    mask = torch.rand(5, 6) > 0.3
    for options in ({}, {"mask": mask}, {"is_causal": True, "window": 3}):
        assert torch.autograd.gradcheck(
            lambda *i, o=options: blockwise_attention(*i, **o, block_size=2),
            inputs,
        )


def test_a_larger_score_may_come_at_any_time(limit):
    """Whoever forgets to rescale is right only if the largest comes first."""
    query, key, value = random(1, 3), random(6, 3), random(6, 2)
    key = key * 5
    expected = plain(query, key, value)
    for order in itertools.permutations(range(6)):
        order = list(order)
        context = blockwise_attention(
            query, key[order], value[order], block_size=2
        )
        torch.testing.assert_close(context, expected)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e30])
def test_scores_of_any_size_do_not_overflow(size, limit):
    query = torch.tensor([[1.0]], requires_grad=True)
    key = torch.tensor([[-size], [size], [0.0], [size]])
    value = torch.tensor([[7.0], [1.0], [9.0], [3.0]])
    context = blockwise_attention(query, key, value, block_size=1)
    assert context.item() == 2.0
    context.sum().backward()
    assert query.grad.isfinite().all()


def test_a_row_without_a_key_is_zero_with_finite_gradients(limit):
    inputs = [random(2, 5, 3, dtype=torch.float32, grad=True) for _ in "qkv"]
    mask = torch.ones(2, 5, 5, dtype=torch.bool)
    mask[0, 2] = mask[1, :, :] = False
    context = blockwise_attention(*inputs, mask=mask, block_size=2)
    assert context[0, 2].eq(0).all()
    assert context[1].eq(0).all()
    context.sum().backward()
    for tensor in inputs:
        assert tensor.grad.isfinite().all()
        assert tensor.grad[1].eq(0).all()
    assert inputs[0].grad[0, 2].eq(0).all()


def test_a_dead_beginning_does_not_spoil_later_blocks(limit):
    inputs = [random(1, n, 2) for n in (3, 8, 8)]
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, :6] = False
    context = blockwise_attention(*inputs, mask=mask, block_size=2)
    torch.testing.assert_close(context, plain(*inputs, mask=mask))


def test_the_last_query_stands_beside_the_last_key(limit):
    one_hot = torch.eye(4)
    zeros = torch.zeros(2, 3), torch.zeros(4, 3)
    context = blockwise_attention(
        *zeros, one_hot, is_causal=True, block_size=2
    )
    expected = causal_mask(2, 4) / torch.tensor([[3.0], [4.0]])
    torch.testing.assert_close(context, expected)


def test_the_future_does_not_leak(limit):
    def attend(x):
        return blockwise_attention(x, x, x, is_causal=True, block_size=3)

    assert not future_leak(attend, random(2, 8, 3))
    assert future_leak(lambda x: blockwise_attention(x, x, x), random(2, 8, 3))


@HALVES
def test_half_precision_is_summed_in_single(dtype, limit):
    """4,096 equal weights: a bfloat16 sum would stop at 256."""
    ones = torch.ones(1, 4096, 8, dtype=dtype)
    context = blockwise_attention(ones[:, :1], ones, ones)
    assert context.dtype == dtype
    assert context.eq(1).all()
    large = torch.full((1, 3, 80), 256.0, dtype=dtype)
    assert blockwise_attention(large, large, large).eq(256).all()


@HALVES
def test_half_precision_rounds_the_result_only(dtype, limit):
    inputs = [random(2, 9, 4).to(dtype).requires_grad_() for _ in "qkv"]
    context = blockwise_attention(*inputs, is_causal=True, block_size=2)
    expected = plain(*(t.float() for t in inputs), is_causal=True).to(dtype)
    torch.testing.assert_close(context, expected)
    context.sum().backward()
    assert all(tensor.grad.dtype == dtype for tensor in inputs)


@pytest.mark.parametrize("attend", [blockwise_attention, linear_attention])
def test_autocast_does_not_make_it_less_precise(attend):
    inputs = [random(9, 4, dtype=torch.float32) for _ in "qkv"]
    expected = attend(*inputs, is_causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attend(*inputs, is_causal=True), expected)


def test_strided_inputs_give_the_same():
    inputs = [random(3, 5, 2).transpose(0, 2) for _ in "qkv"]
    dense = [tensor.contiguous() for tensor in inputs]
    assert torch.equal(
        blockwise_attention(*inputs), blockwise_attention(*dense)
    )


def test_inputs_and_mask_stay_as_they_are():
    inputs = [random(5, 2, grad=True) for _ in "qkv"]
    mask = torch.rand(5, 5) > 0.5
    before = [tensor.detach().clone() for tensor in (*inputs, mask)]
    blockwise_attention(*inputs, mask=mask, block_size=2).sum().backward()
    for tensor, old in zip((*inputs, mask), before, strict=True):
        assert torch.equal(tensor, old)


def test_second_derivatives_are_refused_and_the_way_out_is_named():
    inputs = [random(3, 2, grad=True) for _ in "qkv"]
    context = blockwise_attention(*inputs)
    (grad,) = torch.autograd.grad(context.sum(), inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="need_weights=True"):
        grad.sum().backward()


# --- blocks that are never computed ------------------------------------------


def computed(queries, keys, **options):
    """Count the scores that a walk over blocks visits."""
    query, key = torch.empty(1, queries, 1), torch.empty(1, keys, 1)
    mask = options.get("mask")
    walk = efficient._Walk(
        query,
        key,
        None if mask is None else mask[None],
        None,
        options.get("is_causal", False),
        options.get("window"),
        8,
    )
    walk.queries = 8
    seen = torch.zeros(queries, keys, dtype=torch.bool)
    for _, part in walk:
        for columns, hidden in walk.blocks(slice(0, 1), part):
            assert hidden is None or not hidden.all()
            seen[part, columns] = True
    return seen


def test_blocks_in_the_future_are_never_computed():
    seen = computed(64, 64, is_causal=True)
    blocks = seen.view(8, 8, 8, 8).any(3).any(1)
    assert torch.equal(blocks, torch.ones(8, 8).tril().bool())
    # With a cache, the blocks of all earlier keys are needed.
    assert computed(8, 64, is_causal=True).all()


def test_blocks_outside_the_window_are_never_computed():
    for is_causal in (True, False):
        seen = computed(256, 256, is_causal=is_causal, window=8)
        allowed = sliding_window_mask(256, window=8)
        if is_causal:
            allowed &= causal_mask(256)
        assert seen[allowed].all()
        assert seen.sum() <= 256 * 8 * (2 if is_causal else 3)


def test_blocks_that_a_mask_hides_are_never_computed():
    layout = torch.rand(8, 8) > 0.5
    mask = block_sparse_mask(layout, 8)
    assert torch.equal(computed(64, 64, mask=mask), mask)


# --- memory ------------------------------------------------------------------


def peak_bytes(function):
    """Return the most memory that was in use at once, by torch's count."""
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in changes))


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "window": 64}])
def test_memory_grows_with_the_length_and_not_with_its_square(options):
    def usage(length, backward):
        inputs = [
            random(length, 16, dtype=torch.float32, grad=backward)
            for _ in "qkv"
        ]

        def call():
            context = blockwise_attention(*inputs, **options)
            if backward:
                context.sum().backward()

        return peak_bytes(call)

    for backward in (False, True):
        buffers = 2 * 4 * efficient._BLOCK_CPU
        short, long = (usage(n, backward) for n in (2048, 8192))
        assert long - buffers < 5 * short
        assert long < 4 * 8192 * 8192 / 20


# --- compilation, messages (run without shape checks) ------------------------


@pytest.mark.plain
def test_it_compiles_without_a_break():
    inputs = [random(2, 5, 3, grad=True) for _ in "qkv"]
    mask = torch.rand(2, 1, 5) > 0.2

    def loss(query, key, value):
        context = blockwise_attention(
            query, key, value, mask=mask, is_causal=True, block_size=2
        )
        return (context * context).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(compiled(*inputs), inputs)
    theirs = torch.autograd.grad(loss(*inputs), inputs)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right)


@pytest.mark.plain
def test_operators_are_registered_as_torch_wants_them():
    inputs = [random(2, 5, 3, grad=True) for _ in "qkv"]
    mask, which = torch.rand(2, 5, 5) > 0.3, torch.arange(2)
    torch.library.opcheck(
        efficient._blockwise,
        (*inputs, mask, which, True, 3, 0.5, 2),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"key": torch.zeros(4, 2)}, ValueError, "must have the same width"),
        (
            {"value": torch.zeros(5, 3)},
            ValueError,
            "must have the same length",
        ),
        ({"query": torch.zeros(3)}, ValueError, "two dimensions"),
        ({"query": torch.zeros(2, 3).int()}, TypeError, "floating-point"),
        ({"key": torch.zeros(4, 3).double()}, TypeError, "share one type"),
        ({"mask": torch.ones(2, 4)}, TypeError, "mask.bool()"),
        ({"mask": torch.ones(3, 4).bool()}, ValueError, "does not broadcast"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"window": 2.0}, TypeError, "window must be an int"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1"),
        ({"block_size": True}, TypeError, "block_size must be an int"),
        ({"scale": "1"}, TypeError, "scale must be a number"),
    ],
)
def test_wrong_calls_are_told_what_is_wrong(change, error, words):
    inputs = {
        "query": torch.zeros(2, 3),
        "key": torch.zeros(4, 3),
        "value": torch.zeros(4, 3),
    }
    options = inputs | change
    call = [options.pop(name) for name in inputs]
    with pytest.raises(error, match=re.escape(words)):
        blockwise_attention(*call, **options)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sliding_window_mask(3, window=0), ValueError, "window"),
        (lambda: sliding_window_mask(3, window=1.5), TypeError, "window"),
        (lambda: sliding_window_mask(-1, window=1), ValueError, "query_leng"),
        (lambda: block_sparse_mask(torch.eye(2), 2), TypeError, "layout"),
        (
            lambda: block_sparse_mask(torch.ones(2).bool(), 2),
            ValueError,
            "two-dimensional",
        ),
        (
            lambda: block_sparse_mask(torch.eye(2).bool(), 0),
            ValueError,
            "block_size",
        ),
        (
            lambda: block_sparse_mask(torch.eye(2).bool(), 2, 5),
            ValueError,
            "query_length=5 is more than the 4 positions",
        ),
        (
            lambda: block_sparse_mask(torch.eye(2).bool(), 2, 4, 5),
            ValueError,
            "key_length=5",
        ),
        (
            lambda: linear_attention(
                *torch.zeros(3, 2, 4), mask=torch.ones(2, 2).bool()
            ),
            ValueError,
            "differs between queries",
        ),
        (
            lambda: linear_attention(*torch.zeros(3, 4, 2), chunk_size=0),
            ValueError,
            "chunk_size",
        ),
    ],
)
def test_wrong_masks_and_options_are_told_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call()


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


def test_a_causal_window_holds_its_own_key_and_those_before():
    mask = sliding_window_mask(9, window=3) & causal_mask(9)
    assert mask.sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]


def test_a_layout_of_blocks_says_what_each_position_sees():
    layout = torch.rand(3, 4) > 0.5
    mask = block_sparse_mask(layout, 5, 13, 17)
    assert mask.shape == (13, 17)
    for i, j in itertools.product(range(13), range(17)):
        assert mask[i, j] == layout[i // 5, j // 5]
    assert block_sparse_mask(layout, 2).shape == (6, 8)


@pytest.mark.plain
def test_a_layout_has_room_for_every_position():
    layout = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"query_length=9 .* 8 positions of 2"
    ):
        block_sparse_mask(layout, 4, 9, 12)
    with pytest.raises(
        ValueError, match=r"key_length=13 .* 12 positions of 3"
    ):
        block_sparse_mask(layout, 4, 8, 13)


# --- cache -------------------------------------------------------------------


def test_the_cache_is_what_the_layer_asks_for():
    assert isinstance(KVCache(), AttentionCache)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4]),
)
def test_any_portions_give_the_result_of_one_pass(portions, kv_heads):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 4, num_kv_heads=kv_heads).double()
    words = torch.randn(2, sum(portions), 8, dtype=F64)
    with torch.no_grad():
        expected, _ = layer(words, is_causal=True)
        cache = KVCache()
        parts = []
        for part in words.split(portions, dim=1):
            parts.append(layer(part, is_causal=True, cache=cache)[0])
        torch.testing.assert_close(torch.cat(parts, 1), expected)
    assert cache.length == sum(portions)
    assert cache.num_bytes == 2 * 2 * kv_heads * 2 * sum(portions) * 8


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_a_language_model_says_the_same_with_caches(positions):
    model = LanguageModel(11, 8, 2, 2, positions=positions).double()
    tokens = torch.randint(11, (3, 9))
    with torch.no_grad():
        expected = model(tokens)
        caches = [KVCache() for _ in model.blocks]
        parts = [
            model(part, caches=caches)
            for part in tokens.split([4, 1, 1, 3], 1)
        ]
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_padding_on_the_left_goes_along_with_a_cache():
    layer = MultiHeadAttention(8, 2).double()
    words = random(2, 6, 8)
    mask = padding_mask([4, 6], 6, side="left")
    with torch.no_grad():
        expected, _ = layer(words, mask=mask, is_causal=True)
        cache = KVCache()
        first, _ = layer(
            words[:, :4], mask=mask[..., :4], is_causal=True, cache=cache
        )
        rest, _ = layer(words[:, 4:], mask=mask, is_causal=True, cache=cache)
    torch.testing.assert_close(torch.cat([first, rest], 1), expected)


def test_storing_costs_little_more_than_what_is_stored():
    """Room doubles, so all copies together are at most twice the whole."""
    cache = KVCache()
    for length in range(1, 1001):
        key, _ = cache.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
        room = 2 ** math.ceil(math.log2(length))  # no sooner than it runs out
        assert key.untyped_storage().nbytes() == room * 4 * 4
    assert key.shape == (1, 1, 1000, 4)
    assert key.eq(1).all()


def test_keys_and_values_may_differ_in_width():
    cache = KVCache()
    for start in (0, 3):
        key, value = random(2, 1, 3, 4), random(2, 1, 3, 5)
        keys, values = cache.update(key, value)
        assert torch.equal(keys[..., start:, :], key)
        assert torch.equal(values[..., start:, :], value)
    assert keys.shape == (2, 1, 6, 4)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (torch.zeros(2, 1, 1, 4), torch.zeros(2, 2, 1, 4), "differ in batch"),
        (torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 4), "value must have sha"),
        (torch.zeros(3, 1, 1, 4), torch.zeros(3, 1, 1, 4), "the cache holds"),
        (torch.zeros(2, 1, 1, 5), torch.zeros(2, 1, 1, 4), "key has shape"),
        (torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 1, 5), "value has shape"),
        (
            torch.zeros(2, 1, 1, 4).double(),
            torch.zeros(2, 1, 1, 4).double(),
            "torch.float64",
        ),
        (
            torch.zeros(2, 1, 1, 4, requires_grad=True),
            torch.zeros(2, 1, 1, 4),
            "train without a cache",
        ),
    ],
)
def test_a_cache_refuses_what_does_not_belong_and_keeps_what_it_has(
    key, value, words
):
    cache = KVCache()
    cache.update(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
    with pytest.raises(ValueError, match=words):
        cache.update(key, value)
    assert cache.length == 3
    keys, _ = cache.update(*torch.ones(2, 2, 1, 1, 4))
    assert keys.shape == (2, 1, 4, 4)
    assert keys.eq(1).all()


# --- linear attention --------------------------------------------------------


def features_first(query, key, value, mask=None, is_causal=False):
    """The same weights, with the scores written out."""
    scores = (F.elu(query) + 1) @ (F.elu(key) + 1).mT
    if mask is not None:
        scores = scores * mask
    if is_causal:
        scores = scores.tril(key.shape[-2] - query.shape[-2])
    total = scores.sum(-1, keepdim=True)
    return scores / torch.where(total == 0, 1.0, total) @ value


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
    context = linear_attention(
        query,
        key,
        value,
        mask=mask,
        is_causal=is_causal,
        chunk_size=chunk_size,
    )
    expected = features_first(query, key, value, mask, is_causal)
    torch.testing.assert_close(context, expected)


def test_gradcheck_of_linear_attention():
    inputs = [random(n, 2, grad=True) for n in (5, 6, 6)]
    assert torch.autograd.gradcheck(
        lambda *i: linear_attention(*i, is_causal=True, chunk_size=2), inputs
    )


def test_linear_attention_does_not_see_the_future():
    def attend(x):
        return linear_attention(x, x, x, is_causal=True, chunk_size=3)

    assert not future_leak(attend, random(2, 8, 3))


def test_linear_attention_of_a_dead_row_is_zero_with_finite_gradients():
    inputs = [random(2, 4, 3, grad=True) for _ in "qkv"]
    mask = torch.tensor([[[True, False, True, True]], [[False] * 4]])
    context = linear_attention(*inputs, mask=mask)
    assert context[1].eq(0).all()
    context.sum().backward()
    for tensor in inputs:
        assert tensor.grad.isfinite().all()


@HALVES
def test_linear_attention_sums_halves_in_single(dtype):
    ones = torch.ones(1, 4096, 4, dtype=dtype)
    context = linear_attention(ones[:, :1], ones, ones)
    assert context.dtype == dtype
    assert context.eq(1).all()


def test_the_rank_of_linear_attention_is_the_width_of_a_key():
    query, key = random(20, 3), random(20, 3)
    weights = linear_attention(query, key, torch.eye(20, dtype=F64))
    assert torch.linalg.matrix_rank(weights) == 3
    torch.testing.assert_close(weights.sum(1), torch.ones(20, dtype=F64))


def test_memory_of_linear_attention_is_linear():
    def usage(length):
        inputs = [random(length, 16, dtype=torch.float32) for _ in "qkv"]
        return peak_bytes(lambda: linear_attention(*inputs, is_causal=True))

    assert usage(8192) < 4.5 * usage(2048)


def test_features_far_below_zero_still_sum_to_one():
    """There elu(x) + 1 is 0 in floating point, and exp(x) is not."""
    inputs = [torch.full((1, 1, 4), -20.0), torch.randn(1, 3, 4)]
    inputs.append(torch.eye(3)[None])
    weights = linear_attention(*inputs)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    precise = linear_attention(*(tensor.double() for tensor in inputs))
    torch.testing.assert_close(weights, precise.float())


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_derivative_in_forward_mode_is_refused_and_not_zero():
    inputs = [torch.randn(3, 4) for _ in range(3)]
    for place in range(3):

        def run(one, place=place):
            others = [*inputs]
            others[place] = one
            return blockwise_attention(*others)

        with pytest.raises(NotImplementedError, match="forward mode"):
            torch.func.jvp(run, (inputs[place],), (inputs[place],))


def test_a_row_with_no_key_is_zero_whatever_the_values_hold():
    mask = torch.tensor([[False, False, False], [True, False, True]])
    value = torch.randn(3, 4)
    value[1] = torch.nan
    inputs = torch.randn(2, 4), torch.randn(3, 4), value
    assert blockwise_attention(*inputs, mask=mask)[0].eq(0).all()
