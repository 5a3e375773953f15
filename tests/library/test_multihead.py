"""Multi-head attention: equal to PyTorch's, and defined where that is not."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import (
    BOTH,
    HALVES,
    ListCache,
    Turn,
    assert_gradients_are_those_of,
    gradients,
    randomised,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from attention_lib import reference
from attention_lib.attention import scaled_dot_product_attention
from attention_lib.interop import to_mha_mask
from attention_lib.masks import padding_mask
from attention_lib.multihead import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)

F64 = torch.float64


def layer_of(*sizes, **options):
    """A layer whose numbers all matter, biases too."""
    return randomised(MultiHeadAttention(*sizes, **options).double())


def normal(*shape, grad=False):
    return torch.randn(shape, dtype=F64, requires_grad=grad)


@st.composite
def setups(draw, low=1):
    """Sizes, inputs and a mask of any legal kind; B equals H now and then."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    heads, d_model = draw(st.sampled_from([(1, 3), (2, 4), (2, 2), (3, 6)]))
    B, Tq, Tk = (draw(st.integers(low, 4)) for _ in range(3))
    kdim, vdim = (draw(st.sampled_from([None, d_model, 5])) for _ in range(2))
    shape = draw(
        st.sampled_from(
            [
                None,
                (Tq, Tk),
                (B, Tq, Tk),
                (B, 1, Tk),
                (1, Tq, Tk),
                (B, heads, Tq, Tk),
                (1, heads, 1, Tk),
            ]
        )
    )
    options = {"kdim": kdim, "vdim": vdim, "bias": draw(st.booleans())}
    inputs = (
        normal(B, Tq, d_model),
        normal(B, Tk, kdim or d_model),
        normal(B, Tk, vdim or d_model),
    )
    mask = None if shape is None else torch.rand(shape) < 0.6
    return d_model, heads, options, inputs, mask


# --- PyTorch's layer ---------------------------------------------------------


@settings(max_examples=100)
@given(setups(), *[st.booleans()] * 4)
def test_outputs_weights_and_gradients_equal_those_of_pytorch(
    setup, training, need_weights, batch_first, recorded
):
    d_model, heads, options, inputs, mask = setup
    theirs = randomised(
        nn.MultiheadAttention(
            d_model, heads, batch_first=batch_first, dtype=F64, **options
        )
    ).train(training)
    ours = MultiHeadAttention.from_torch(theirs)
    if mask is not None:
        mask[..., 0] = True  # where theirs gives NaN, ours does not
    (B, Tq), their_mask = inputs[0].shape[:2], None
    order = (0, 1, 2) if batch_first else (1, 0, 2)
    if mask is not None:
        whole = mask.expand(B, *mask.shape[1:]) if mask.dim() > 2 else mask
        their_mask = to_mha_mask(whole, num_heads=heads, query_length=Tq)
    with torch.inference_mode(not recorded):  # which has a fast path
        inputs = [tensor.clone().requires_grad_(recorded) for tensor in inputs]
        expected, expected_weights = theirs(
            *(tensor.permute(order) for tensor in inputs),
            attn_mask=their_mask,
            need_weights=need_weights,
            average_attn_weights=False,
        )
        expected = expected.permute(order)
        found, weights = ours(*inputs, mask=mask, need_weights=need_weights)
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(found, expected, **close)
    assert (weights is None) != need_weights
    if need_weights:
        torch.testing.assert_close(weights, expected_weights, **close)
    if recorded:
        direction = torch.randn_like(expected)
        grads = []
        for output in (expected, found):
            output.backward(direction)
            grads.append([tensor.grad for tensor in inputs])
            for tensor in inputs:
                tensor.grad = None
        torch.testing.assert_close(*grads, **close)
        assert_gradients_are_those_of(theirs, ours, **close)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 5}, {"kdim": 5, "vdim": 7}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_of_pytorch_comes_back_bit_by_bit(
    widths, bias, batch_first, dtype
):
    theirs = randomised(
        nn.MultiheadAttention(
            6, 3, dropout=0.25, bias=bias, batch_first=batch_first, **widths
        ).to(dtype)
    ).eval()
    theirs.out_proj.requires_grad_(False)
    state = torch.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch(batch_first=batch_first)
    assert torch.equal(torch.get_rng_state(), state)
    expected, found = (
        [(name, p.requires_grad, p.dtype, p.tolist()) for name, p in module]
        for module in (theirs.named_parameters(), back.named_parameters())
    )
    assert expected == found
    for attribute in (
        *("embed_dim", "num_heads", "kdim", "vdim", "dropout", "training"),
        *("batch_first", "head_dim", "_qkv_same_embed_dim"),
    ):
        assert getattr(back, attribute) == getattr(theirs, attribute)
    assert back.out_proj.training == theirs.out_proj.training
    for parameter in ours.parameters():  # a copy has memory of its own
        parameter.data.fill_(7.0)
    for module in (theirs, back):
        assert not any((p == 7.0).any() for p in module.parameters())


@settings(max_examples=30)
@given(setups(), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_a_layer_of_ours_comes_back_bit_by_bit(setup, training, dropout):
    d_model, heads, options, _, _ = setup
    layer = layer_of(d_model, heads, dropout=dropout, **options)
    for projection in (layer.query_proj, layer.key_proj, layer.value_proj):
        projection.requires_grad_(False)
    layer.train(training)
    back = MultiHeadAttention.from_torch(layer.to_torch())
    assert repr(back) == repr(layer)
    assert (back.training, back.dropout) == (training, dropout)
    for (name, mine), (other, copied) in zip(
        layer.named_parameters(), back.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(mine, copied)
        assert mine.requires_grad == copied.requires_grad


def test_a_copy_stays_on_its_device():
    theirs = nn.MultiheadAttention(6, 3, device="meta")
    ours = MultiHeadAttention.from_torch(theirs)
    assert {p.device.type for p in ours.parameters()} == {"meta"}


# --- the layer against the oracle --------------------------------------------


def turned(heads, positions):
    """What ``Turn`` does, one position after the other, in NumPy."""
    left, right = np.split(heads, 2, axis=-1)
    angle = np.broadcast_to(positions, (len(heads), heads.shape[2]))
    cos, sin = np.cos(angle)[:, None, :, None], np.sin(angle)[:, None, :, None]
    return np.concatenate(
        [left * cos - right * sin, left * sin + right * cos], axis=-1
    )


def by_hand(layer, inputs, mask, bias, is_causal, positions):
    """Output and weights of a layer, head by head through the oracle."""
    (B, Tq), Tk = inputs[0].shape[:2], inputs[1].shape[1]
    heads, width = layer.num_heads, layer.d_head
    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    parts = []
    for project, tensor in zip(projections, inputs, strict=True):
        features = project(tensor).detach().numpy()
        count = features.shape[2] // width
        split = features.reshape(*features.shape[:2], count, width)
        parts.append(np.moveaxis(split, 2, 1))
    query, key, value = parts
    if layer.rotary is not None:
        positions = positions.numpy()
        query = turned(query, positions[..., Tk - Tq :])
        key = turned(key, positions)
    allowed = np.ones((B, heads, Tq, Tk), dtype=bool)
    if mask is not None:
        allowed &= (mask[:, None] if mask.ndim == 3 else mask).numpy()
    if is_causal:
        allowed &= np.tri(Tq, Tk, Tk - Tq, dtype=bool)
    weights = np.zeros((B, heads, Tq, Tk))
    context = np.zeros((B, Tq, heads * width))
    for head in range(heads):
        shared = head // (heads // layer.num_kv_heads)
        scale = width**-0.5 if layer.scale is None else layer.scale
        scores = scale * query[:, head] @ np.swapaxes(key[:, shared], 1, 2)
        if bias is not None:
            scores = scores + bias[head].numpy()
        weights[:, head] = reference.softmax(scores, allowed[:, head])
        context[..., head * width : (head + 1) * width] = (
            weights[:, head] @ value[:, shared]
        )
    return layer.output_proj(torch.from_numpy(context)), torch.from_numpy(
        weights
    )


@settings(max_examples=150)
@given(setups(low=0), st.data())
def test_each_head_is_attention_of_its_slices(setup, data):
    """Grouped heads, widths, scale, masks, bias and rotary together."""
    d_model, heads, options, inputs, mask = setup
    rotary = data.draw(st.sampled_from([None, Turn()]))
    layer = layer_of(
        d_model,
        heads,
        num_kv_heads=data.draw(st.sampled_from([1, heads])),
        d_head=data.draw(st.sampled_from([2, 4, 6])),
        scale=data.draw(st.sampled_from([None, 0.3])),
        rotary=rotary,
        **options,
    )
    (B, Tq, _), Tk = inputs[0].shape, inputs[1].shape[1]
    positions = None
    if rotary is not None:  # queries have the last positions of the keys
        inputs = (inputs[0][:, max(0, Tq - Tk) :], *inputs[1:])
        if mask is not None and mask.shape[-2] == Tq:
            mask = mask[..., max(0, Tq - Tk) :, :]
        Tq = min(Tq, Tk)
        positions = torch.arange(Tk).expand(B, Tk)
        if data.draw(st.booleans()):
            positions = positions * 3 + torch.arange(B)[:, None]
    bias = data.draw(st.sampled_from([None, normal(heads, Tq, Tk)]))
    is_causal = data.draw(st.booleans())
    wanted = by_hand(layer, inputs, mask, bias, is_causal, positions)
    held = [*inputs, *layer.parameters()]
    before = [tensor.clone() for tensor in held]
    for need_weights in (True, False):
        inputs = [tensor.requires_grad_() for tensor in inputs]
        output, weights = layer(
            *inputs, mask=mask, bias=bias, is_causal=is_causal,
            positions=positions, need_weights=need_weights,
        )  # fmt: skip
        torch.testing.assert_close(output, wanted[0], rtol=1e-10, atol=1e-10)
        if need_weights:
            torch.testing.assert_close(weights, wanted[1])
        for gradient in gradients(output, inputs):
            assert gradient.isfinite().all()
    assert all(map(torch.equal, held, before))
    assert layer.training


def test_without_key_the_layer_attends_to_itself_without_value_to_the_key():
    layer = layer_of(6, 2)
    x, memory = normal(2, 3, 4, 6)
    assert torch.equal(layer(x)[0], layer(x, x, x)[0])
    assert torch.equal(layer(x, memory)[0], layer(x, memory, memory)[0])


@pytest.mark.parametrize("training", [True, False])
def test_any_function_of_the_signature_attends(training):
    calls = []

    def attention(query, key, value, **options):
        calls.append((query.shape, key.shape, options))
        return scaled_dot_product_attention(query, key, value, **options)

    layer = layer_of(
        8, 4, num_kv_heads=2, d_head=3, scale=0.5, dropout=1.0,
        attention=attention,
    ).train(training)  # fmt: skip
    x, mask, bias = normal(2, 5, 8), torch.ones(2, 1, 5) > 0, normal(4, 1, 5)
    output, weights = layer(x, mask=mask, bias=bias, is_causal=True)
    ((query, key, options),) = calls
    assert (query, key) == ((2, 4, 5, 3), (2, 2, 5, 3))
    assert torch.equal(options.pop("mask").flatten(), mask.flatten())
    assert torch.equal(options.pop("bias"), bias)
    assert options == {
        "is_causal": True,
        "scale": 0.5,
        "dropout_p": 1.0 if training else 0.0,
        "need_weights": False,
    }
    assert weights is None
    dropped = torch.equal(output, layer.output_proj.bias.expand(2, 5, 8))
    assert dropped == training


def test_heads_are_slices_of_the_features_not_of_the_positions():
    features = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])  # FuxiCTR #30
    assert split_heads(features, 2).tolist() == [
        [[[1.0], [3.0]], [[2.0], [4.0]]]
    ]
    heads = torch.arange(8.0).reshape(1, 2, 2, 2)
    assert merge_heads(heads).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7]]]
    for shape in ((6,), (2, 4, 6), (0, 3, 4, 6)):
        features = torch.randn(3, *shape).transpose(0, -2)  # strided
        split = split_heads(features, 3)
        assert split.data_ptr() == features.data_ptr()
        assert torch.equal(merge_heads(split), features)


# --- rows and values that nobody sees ----------------------------------------


@BOTH
def test_one_dead_row_poisons_neither_output_nor_gradients(need_weights):
    """pytorch/pytorch #41508: a band and pads leave a row without a key."""
    layer = layer_of(1, 1)
    x = normal(2, 4, 1, grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1).repeat(2, 1, 1)
    mask[1, :, 2:] = False
    output, weights = layer(x, mask=mask, need_weights=need_weights)
    assert torch.equal(output[1, 3], layer.output_proj.bias)
    assert weights is None or (weights[1, :, 3] == 0).all()
    for gradient in gradients(output[:, :2], [x, *layer.parameters()]):
        assert gradient.isfinite().all()


@BOTH
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_what_no_query_of_its_sample_sees_changes_nothing(
    need_weights, garbage, cached, kv_heads
):
    layer = layer_of(8, 2, num_kv_heads=kv_heads)
    query, memory = normal(2, 3, 8), normal(2, 5, 8)
    mask = padding_mask([5, 2])
    spoilt = memory.masked_fill(~mask.mT, garbage)

    def run(memory):
        cache = ListCache() if cached else None
        output = layer(
            query, memory, mask=mask, need_weights=need_weights, cache=cache
        )
        if cached:
            assert cache.key.isfinite().all()
            assert cache.value.isfinite().all()
            rest = layer(query, memory[:, :0], mask=mask, cache=cache)
            output = (*output, rest[0])
        return [part for part in output if part is not None]

    torch.testing.assert_close(run(spoilt), run(memory), rtol=0, atol=0)


# --- the cache ---------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.sampled_from([None, "counted", "given"]),
    st.booleans(),
)
def test_any_chunking_with_a_cache_equals_all_at_once(
    chunks, kv_heads, need_weights, turning, padded
):
    rotary = None if turning is None else Turn()
    layer = layer_of(8, 4, num_kv_heads=kv_heads, rotary=rotary)
    total = sum(chunks)
    x = normal(2, total, 8)
    mask = torch.ones(2, 1, total, dtype=torch.bool)
    mask[0, 0, :1] = not padded
    positions = torch.arange(total).expand(2, -1)
    if padded:  # the first real token stands at 0
        positions = positions - torch.tensor([[1], [0]])
    positions = positions if turning == "given" else None
    options = {"is_causal": True, "need_weights": need_weights}
    whole = layer(x, mask=mask, positions=positions, **options)
    cache, start = ListCache(), 0
    for size in chunks:
        part = slice(start, start + size)
        assert cache.length == start
        output, weights = layer(
            x[:, part],
            mask=mask[..., : part.stop],
            positions=None if positions is None else positions[:, part],
            cache=cache,
            **options,
        )
        torch.testing.assert_close(output, whole[0][:, part])
        if need_weights:
            torch.testing.assert_close(
                weights, whole[1][:, :, part, : part.stop]
            )
        start = part.stop
    assert cache.key.shape == (2, kv_heads, total, 2)


def test_a_memory_is_projected_once_and_then_read_from_the_cache():
    layer = layer_of(8, 2, kdim=6, vdim=6)
    memory, queries, cache = normal(3, 5, 6), normal(3, 2, 8), ListCache()
    layer(queries[:, :1], memory, cache=cache)
    output, _ = layer(queries[:, 1:], memory[:, :0], cache=cache)
    torch.testing.assert_close(output, layer(queries, memory)[0][:, 1:])
    assert cache.length == 5


@pytest.mark.plain
@pytest.mark.parametrize(
    "options",
    [
        {"mask": torch.ones(1, 3) > 0},  # without the stored keys
        {"mask": torch.ones(1, 4)},
        {"mask": [[True] * 4]},
        {"bias": torch.zeros(1, 3)},
        {"bias": 0.0},
        {"need_weights": 1},
        {"is_causal": "yes"},
        {"positions": torch.arange(4)},
        {"positions": [3]},
        {"key": torch.zeros(1, 1, 8)},
        {"query": torch.zeros(1, 1, 8, dtype=F64)},
        {"query": torch.zeros(2, 1, 8)},
        {"query": torch.zeros(1, 8)},
    ],
    ids=str,
)
def test_a_refused_call_leaves_the_cache_as_it_was(options):
    layer = MultiHeadAttention(8, 2, rotary=Turn())
    words, cache = torch.randn(1, 4, 8), ListCache()
    layer(words[:, :3], is_causal=True, cache=cache)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        layer(**{"query": words[:, 3:], "cache": cache} | options)
    assert cache.length == 3
    rest, _ = layer(words[:, 3:], is_causal=True, cache=cache)
    at_once, _ = layer(words, is_causal=True)
    torch.testing.assert_close(rest, at_once[:, 3:])


# --- positions ---------------------------------------------------------------


@BOTH
def test_queries_apart_from_their_keys_stand_at_the_end(need_weights):
    layer = layer_of(8, 2, rotary=Turn())
    x = normal(2, 6, 8)
    options = {"is_causal": True, "need_weights": need_weights}
    whole, _ = layer(x, **options)
    last, _ = layer(x[:, 4:], x, **options)
    torch.testing.assert_close(last, whole[:, 4:])
    for positions in (torch.arange(6), torch.arange(6).expand(2, 6)):
        again, _ = layer(x[:, 4:], x, positions=positions, **options)
        torch.testing.assert_close(again, last)
    many, _ = layer(x, x[:, :2], need_weights=need_weights)  # more queries
    few, _ = layer(x[:, 4:], x[:, :2], need_weights=need_weights)
    torch.testing.assert_close(many[:, 4:], few)


def test_positions_of_its_own_make_a_row_of_a_batch_as_if_alone():
    """Padded on the left, packed, or shifted: distances are what counts."""
    layer = layer_of(8, 2, rotary=Turn())
    short, long = normal(1, 3, 8), normal(1, 5, 8)
    alone = [layer(row, is_causal=True)[0] for row in (short, long)]
    batch = torch.cat([nn.functional.pad(short, (0, 0, 2, 0)), long])
    positions = torch.tensor([[0, 0, 0, 1, 2], [7, 8, 9, 10, 11]])
    mask = padding_mask([3, 5], side="left")
    padded, _ = layer(batch, mask=mask, positions=positions, is_causal=True)
    torch.testing.assert_close(padded[:1, 2:], alone[0])
    torch.testing.assert_close(padded[1:], alone[1])
    packed, document = (
        torch.cat([short, long], 1),
        torch.tensor([0] * 3 + [1] * 5),
    )
    together, _ = layer(
        packed,
        mask=document[:, None] == document,
        positions=torch.tensor([0, 1, 2, 0, 1, 2, 3, 4]),
        is_causal=True,
    )
    torch.testing.assert_close(together, torch.cat(alone, 1))


# --- parameters and parts ----------------------------------------------------


def test_the_state_has_readable_names_and_the_sizes_that_were_asked_for():
    layer = MultiHeadAttention(6, 4, num_kv_heads=2, d_head=5, kdim=7, vdim=8)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "query_proj.weight": (20, 6),
        "query_proj.bias": (20,),
        "key_proj.weight": (10, 7),
        "key_proj.bias": (10,),
        "value_proj.weight": (10, 8),
        "value_proj.bias": (10,),
        "output_proj.weight": (6, 20),
        "output_proj.bias": (6,),
    }
    assert list(MultiHeadAttention(6, 2, bias=False).state_dict()) == [
        f"{name}_proj.weight" for name in ("query", "key", "value", "output")
    ]


def test_the_start_gives_unit_variance_for_all_widths():
    layer = MultiHeadAttention(512, 8, num_kv_heads=2, kdim=96, vdim=1024)
    for projection in layer.children():
        inputs = torch.randn(500, projection.in_features)
        assert projection(inputs).var().item() == pytest.approx(1.0, rel=0.06)
        bound = (3.0 / projection.in_features) ** 0.5
        largest = projection.weight.abs().max().item()
        assert 0.98 * bound < largest <= bound
        assert (projection.bias == 0).all()


class Adapter(nn.Module):
    """A projection that is not a ``nn.Linear``: it has no ``weight``."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 1, bias=False)
        self.up = nn.Linear(1, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Quantised(nn.Module):
    """Weights in eight bits, kept as a buffer."""

    def __init__(self, base):
        super().__init__()
        self.scale = base.weight.abs().max() / 127
        self.register_buffer("q", (base.weight / self.scale).round().char())
        self.bias = base.bias

    def forward(self, x):
        return nn.functional.linear(x, self.q.to(x) * self.scale, self.bias)


@BOTH
@pytest.mark.parametrize("stand_in", [Adapter, Quantised])
def test_any_module_may_stand_in_for_a_projection(stand_in, need_weights):
    layer = layer_of(8, 2)
    x = normal(2, 3, 8)
    before, _ = layer(x)
    for name, projection in list(layer.named_children()):
        setattr(layer, name, stand_in(projection).double())
        if stand_in is Adapter:
            nn.init.zeros_(getattr(layer, name).up.weight)
    for cache in (None, ListCache()):
        after, _ = layer(x, need_weights=need_weights, cache=cache)
        torch.testing.assert_close(after, before, rtol=0, atol=0.2)
        after.sum().backward(retain_graph=True)


def test_dropout_acts_in_training_only_and_not_on_the_returned_weights():
    layer = layer_of(6, 2, dropout=0.5)
    x = normal(2, 5, 6)
    expected, weights = layer.eval()(x, need_weights=True)
    assert torch.equal(layer(x, need_weights=True)[0], expected)
    output, same = layer.train()(x, need_weights=True)
    assert not torch.allclose(output, expected)
    torch.testing.assert_close(same, weights)
    assert not torch.allclose(layer(x)[0], expected)


@BOTH
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_stays_close_to_full_and_keeps_its_type(
    dtype, need_weights
):
    layer = layer_of(16, 4).to(dtype)
    exact = copy.deepcopy(layer).double()
    x, mask = torch.randn(3, 7, 16).to(dtype), torch.rand(3, 7, 7) < 0.4
    found = layer(x, mask=mask, need_weights=need_weights)
    right = exact(x.double(), mask=mask, need_weights=need_weights)
    unit = torch.finfo(dtype).eps
    for mine, theirs in zip(found, right, strict=True):
        if mine is not None:
            assert mine.dtype == dtype
            close = {"rtol": 0, "atol": 40 * unit}
            torch.testing.assert_close(mine.double(), theirs, **close)


def test_autocast_computes_in_half_precision_and_trains():
    layer = MultiHeadAttention(16, 4)
    x = torch.randn(2, 5, 16)
    expected, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = [
            layer(x, need_weights=True)[0], layer(x)[0],
            layer(x, x.bfloat16())[0],
        ]  # fmt: skip
    for output in outputs:
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output.float(), expected, rtol=0, atol=0.05)
        output.float().sum().backward()
    assert layer.query_proj.weight.grad.dtype == torch.float32


# --- tools -------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_derivatives_are_those_of_finite_differences(need_weights, kv_heads):
    layer = layer_of(4, 2, num_kv_heads=kv_heads, kdim=3)
    inputs = normal(1, 3, 4, grad=True), normal(1, 2, 3, grad=True)
    mask = torch.tensor([[True, False], [False, False], [True, True]])

    def run(query, key, *_):
        value = key.repeat(1, 1, 2)[..., :4]
        outputs = layer(
            query, key, value, mask=mask, need_weights=need_weights
        )
        return tuple(part for part in outputs if part is not None)

    assert gradcheck(run, (*inputs, *layer.parameters()))
    assert not need_weights or gradgradcheck(run, inputs)


def test_a_layer_can_be_copied_and_stored():
    layer = layer_of(8, 2, num_kv_heads=1, rotary=Turn())
    x = normal(2, 3, 8)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0])
        for parameter in other.parameters():
            parameter.data.zero_()
    assert layer(x)[0].any()


@pytest.mark.plain
@BOTH
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_layer_compiles_into_one_graph(need_weights, kv_heads):
    layer = MultiHeadAttention(8, 4, num_kv_heads=kv_heads, rotary=Turn())
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, mask = torch.randn(2, 5, 8, requires_grad=True), padding_mask([5, 3])
    results = []
    for module in (layer, compiled):
        output, weights = module(
            x, mask=mask, is_causal=True, need_weights=need_weights
        )
        weights = torch.zeros(()) if weights is None else weights
        results.append([output, weights, *gradients(output, [x])])
    torch.testing.assert_close(*results)


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_the_layer_runs_through_the_compiler_of_pytorch():
    layer = MultiHeadAttention(8, 2).requires_grad_(False)
    torch._dynamo.reset()
    x, mask = torch.randn(2, 5, 8), padding_mask([5, 0])
    options = {"mask": mask, "need_weights": True}
    torch.testing.assert_close(
        torch.compile(layer, fullgraph=True)(x, **options), layer(x, **options)
    )


@pytest.mark.plain
@pytest.mark.parametrize("axes", [2, 3, 4])
def test_one_graph_serves_masks_of_many_lengths(axes):
    layer = MultiHeadAttention(8, 2).eval()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, mask: layer(x, mask=mask)[0],
        fullgraph=True,
        backend="eager",
        dynamic=True,
    )
    for B, T in [(3, 5), (4, 6), (5, 17)]:
        shape = {2: (T, T), 3: (B, 1, T), 4: (B, 2, T, T)}[axes]
        x, mask = torch.randn(B, T, 8), torch.rand(shape) > 0.3
        torch.testing.assert_close(compiled(x, mask), layer(x, mask=mask)[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@BOTH
def test_per_sample_gradients_with_masks_are_those_of_single_samples(
    need_weights,
):
    layer = MultiHeadAttention(4, 2, num_kv_heads=1)
    parameters = dict(layer.named_parameters())
    xs, masks = torch.randn(2, 3, 4), padding_mask([0, 3], 3)

    def loss(parameters, x, mask):
        options = {"mask": mask[None], "need_weights": need_weights}
        return torch.func.functional_call(
            layer, parameters, (x[None],), options
        )[0].square().sum()  # fmt: skip

    gradient = torch.func.grad(loss)
    found = torch.vmap(gradient, in_dims=(None, 0, 0))(parameters, xs, masks)
    for row in range(2):
        alone = gradient(parameters, xs[row], masks[row])
        for name, expected in alone.items():
            torch.testing.assert_close(found[name][row], expected)


@BOTH
def test_shapes_are_known_without_numbers(need_weights):
    def shapes(device):
        with torch.device(device):
            layer = MultiHeadAttention(8, 4, num_kv_heads=2, rotary=Turn())
            x, cache = torch.empty(2, 3, 8), ListCache()
            mask = padding_mask(torch.ones(2, dtype=torch.long), 6)
            options = {"is_causal": True, "need_weights": need_weights}
            layer(x, cache=cache, **options)
            output, weights = layer(x, mask=mask, cache=cache, **options)
        assert weights is None or weights.shape == (2, 4, 3, 6)
        return output.shape

    assert shapes("meta") == (2, 3, 8)
    with FakeTensorMode():
        assert shapes("cpu") == (2, 3, 8)
