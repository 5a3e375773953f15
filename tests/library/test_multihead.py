"""Multi-head attention: equal to PyTorch's, and defined where that is not."""

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import ListCache, assert_gradients_are_those_of, gradients
from torch import nn

from attention_lib import reference
from attention_lib.leaks import (
    batch_leak,
    future_leak,
    order_leak,
    padding_leak,
)
from attention_lib.masks import padding_mask
from attention_lib.multihead import (
    AttentionCache,
    MultiHeadAttention,
    merge_heads,
    split_heads,
)

F64 = torch.float64
GOLDEN = json.loads(
    (Path(__file__).parents[1] / "cases" / "golden.json").read_text("utf-8")
)["cases"]


def layer_with_biases(*sizes, dtype=F64, **options):
    """A layer whose biases are not zero, so that they are tested too."""
    layer = MultiHeadAttention(*sizes, **options).to(dtype)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return layer


def identity_layer(d_model, num_heads, **options):
    """A layer that projects nothing: heads are slices of the input."""
    layer = MultiHeadAttention(d_model, num_heads, bias=False, **options)
    for projection in layer.children():
        nn.init.eye_(projection.weight)
    return layer.double()


def alive(mask):
    """Let every query of a mask attend to the first key at least."""
    mask = mask.clone()
    mask[..., 0] = True
    return mask


def to_four_axes(mask, batch, heads, tq, tk):
    return (mask[:, None] if mask.ndim == 3 else mask).expand(
        batch, heads, tq, tk
    )


def torch_mask(mask, batch, heads, tq, tk):
    """The mask in the form and with the meaning that PyTorch wants."""
    return ~to_four_axes(mask, batch, heads, tq, tk).flatten(0, 1)


@st.composite
def setups(draw):
    """Sizes, options, inputs and a mask of any legal kind."""
    heads = draw(st.integers(1, 4))
    d_model = heads * draw(st.integers(1, 4))
    batch, tq, tk = (draw(st.integers(1, 4)) for _ in range(3))
    kdim = draw(st.sampled_from([None, d_model, 3, 7]))
    vdim = draw(st.sampled_from([None, d_model, 2, 5]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    shape = draw(
        st.sampled_from(
            [
                None,
                (tq, tk),
                (batch, tq, tk),
                (batch, 1, tk),
                (batch, heads, tq, tk),
                (1, heads, 1, tk),
                (batch, 1, tq, tk),
            ]
        )
    )
    mask = None if shape is None else alive(torch.rand(shape) < 0.5)
    options = {"kdim": kdim, "vdim": vdim, "bias": draw(st.booleans())}
    inputs = (
        torch.randn(batch, tq, d_model, dtype=F64),
        torch.randn(batch, tk, kdim or d_model, dtype=F64),
        torch.randn(batch, tk, vdim or d_model, dtype=F64),
    )
    return d_model, heads, options, inputs, mask


# Parity with torch.nn.MultiheadAttention


@settings(max_examples=120, deadline=None)
@given(setups(), st.booleans(), st.booleans(), st.booleans())
def test_outputs_weights_and_gradients_equal_those_of_pytorch(
    setup, training, need_weights, batch_first
):
    d_model, heads, options, inputs, mask = setup
    theirs = nn.MultiheadAttention(
        d_model, heads, batch_first=batch_first, dtype=F64, **options
    ).train(training)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = MultiHeadAttention.from_torch(theirs)

    inputs = [tensor.requires_grad_() for tensor in inputs]
    batch, tq, _ = inputs[0].shape
    tk = inputs[1].shape[1]
    order = (0, 1, 2) if batch_first else (1, 0, 2)
    expected, expected_weights = theirs(
        *(tensor.permute(order) for tensor in inputs),
        attn_mask=None
        if mask is None
        else torch_mask(mask, batch, heads, tq, tk),
        need_weights=need_weights,
        average_attn_weights=False,
    )
    expected = expected.permute(order)
    output, weights = ours(*inputs, mask=mask, need_weights=need_weights)

    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    if need_weights:
        torch.testing.assert_close(
            weights, expected_weights, rtol=1e-12, atol=1e-12
        )
    else:
        assert weights is None

    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    input_gradients = [tensor.grad.clone() for tensor in inputs]
    for tensor in inputs:
        tensor.grad = None
    (output * direction).sum().backward()
    for tensor, gradient in zip(inputs, input_gradients, strict=True):
        torch.testing.assert_close(
            tensor.grad, gradient, rtol=1e-11, atol=1e-11
        )
    assert_gradients_are_those_of(theirs, ours, rtol=1e-11, atol=1e-11)


@settings(max_examples=30, deadline=None)
@given(setups())
def test_the_fast_path_of_pytorch_in_inference_agrees_too(setup):
    d_model, heads, options, inputs, _ = setup
    theirs = nn.MultiheadAttention(
        d_model, heads, batch_first=True, dtype=F64, **options
    ).eval()
    ours = MultiHeadAttention.from_torch(theirs)
    with torch.inference_mode():
        expected, expected_weights = theirs(
            *inputs, average_attn_weights=False
        )
        output, weights = ours(*inputs, need_weights=True)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        weights, expected_weights, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "widths", [{}, {"kdim": 5}, {"vdim": 7}, {"kdim": 5, "vdim": 7}]
)
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
def test_a_layer_of_pytorch_comes_back_bit_by_bit(
    widths, bias, batch_first, dtype
):
    theirs = nn.MultiheadAttention(
        6, 3, dropout=0.25, bias=bias, batch_first=batch_first, **widths
    ).to(dtype)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    for parameter in theirs.out_proj.parameters():
        parameter.requires_grad = False
    theirs.eval()
    back = MultiHeadAttention.from_torch(theirs).to_torch(
        batch_first=batch_first
    )
    expected, found = (
        {name: (p, p.requires_grad) for name, p in m.named_parameters()}
        for m in (theirs, back)
    )
    assert list(expected) == list(found)
    for name, (parameter, requires_grad) in expected.items():
        assert torch.equal(found[name][0], parameter)
        assert found[name][0].dtype == parameter.dtype
        assert found[name][1] == requires_grad
    for attribute in (
        "embed_dim", "num_heads", "kdim", "vdim", "dropout", "batch_first",
        "training", "head_dim", "add_zero_attn", "_qkv_same_embed_dim",
    ):  # fmt: skip
        assert getattr(back, attribute) == getattr(theirs, attribute)
    assert back.out_proj.training == theirs.out_proj.training


@settings(max_examples=40, deadline=None)
@given(setups(), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_a_layer_of_ours_comes_back_bit_by_bit(setup, training, dropout):
    d_model, heads, options, _, _ = setup
    layer = layer_with_biases(d_model, heads, dropout=dropout, **options)
    layer.value_proj.requires_grad_(False).train(training)
    layer.key_proj.requires_grad_(False)
    layer.query_proj.requires_grad_(False)
    layer.train(training)
    back = MultiHeadAttention.from_torch(layer.to_torch())
    assert repr(back) == repr(layer)
    assert back.training == layer.training
    for (name, parameter), (other, copied) in zip(
        layer.named_parameters(), back.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(parameter, copied)
        assert parameter.requires_grad == copied.requires_grad


def test_a_copy_shares_no_memory_and_draws_no_random_number():
    theirs = nn.MultiheadAttention(6, 3)
    state = torch.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch()
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.fill_(7.0)
    for copied, original in zip(
        back.parameters(), theirs.parameters(), strict=True
    ):
        assert torch.equal(copied, original)
        assert not (copied == 7.0).any()


def test_a_copy_keeps_parameters_on_their_device():
    theirs = nn.MultiheadAttention(6, 3, device="meta")
    ours = MultiHeadAttention.from_torch(theirs)
    assert {p.device.type for p in ours.parameters()} == {"meta"}
    output, weights = ours(
        torch.empty(2, 4, 6, device="meta"), need_weights=True
    )
    assert output.shape == (2, 4, 6)
    assert weights.shape == (2, 3, 4, 4)


def test_both_layers_train_alike():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64)
    ours = MultiHeadAttention.from_torch(theirs)
    x, target = torch.randn(2, 3, 5, 8, dtype=F64)
    for layer, call in (
        (theirs, lambda: theirs(x, x, x)[0]),
        (ours, lambda: ours(x)[0]),
    ):
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
        for _ in range(20):
            optimiser.zero_grad()
            (call() - target).square().mean().backward()
            optimiser.step()
    for ours_, theirs_ in zip(
        ours.to_torch().parameters(), theirs.parameters(), strict=True
    ):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-7, atol=1e-7)


@pytest.mark.plain
@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_options_without_a_counterpart_are_refused_by_name(option):
    with pytest.raises(ValueError, match=option):
        MultiHeadAttention.from_torch(
            nn.MultiheadAttention(4, 2, **{option: True})
        )


@pytest.mark.plain
def test_only_layers_that_pytorch_can_hold_are_copied():
    with pytest.raises(TypeError, match=r"module.*Linear"):
        MultiHeadAttention.from_torch(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="num_kv_heads=1"):
        MultiHeadAttention(4, 2, num_kv_heads=1).to_torch()
    for name in ("weight", "bias"):
        layer = MultiHeadAttention(4, 2)
        getattr(layer.key_proj, name).requires_grad_(False)
        with pytest.raises(ValueError, match=f"requires_grad of the {name}"):
            layer.to_torch()


# The layer against the oracle


@settings(max_examples=80, deadline=None)
@given(setups(), st.booleans(), st.booleans(), st.data())
def test_each_head_is_attention_of_its_slices(
    setup, is_causal, need_weights, data
):
    d_model, heads, options, inputs, mask = setup
    kv_heads = data.draw(
        st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])
    )
    layer = layer_with_biases(d_model, heads, num_kv_heads=kv_heads, **options)
    output, weights = layer(
        *inputs, mask=mask, is_causal=is_causal, need_weights=need_weights
    )

    batch, tq, _ = inputs[0].shape
    tk, width = inputs[1].shape[1], d_model // heads
    allowed = np.ones((batch, heads, tq, tk), dtype=bool)
    if mask is not None:
        allowed &= to_four_axes(mask, batch, heads, tq, tk).numpy()
    if is_causal:
        allowed &= np.tri(tq, tk, tk - tq, dtype=bool)
    query, key, value = (
        projection(tensor).detach().numpy()
        for projection, tensor in zip(
            (layer.query_proj, layer.key_proj, layer.value_proj),
            inputs,
            strict=True,
        )
    )
    contexts = []
    for head in range(heads):
        shared = head // (heads // kv_heads)
        own = slice(head * width, (head + 1) * width)
        group = slice(shared * width, (shared + 1) * width)
        context, expected = reference.attention(
            query[..., own],
            key[..., group],
            value[..., group],
            allowed[:, head],
        )
        contexts.append(context)
        if need_weights:
            np.testing.assert_allclose(
                weights[:, head].detach(), expected, atol=1e-12
            )
    merged = torch.from_numpy(np.concatenate(contexts, axis=-1))
    torch.testing.assert_close(
        output, layer.output_proj(merged), rtol=1e-11, atol=1e-11
    )


@settings(max_examples=60, deadline=None)
@given(setups(), st.booleans())
def test_asking_for_weights_does_not_change_the_output(setup, is_causal):
    d_model, heads, options, inputs, mask = setup
    if mask is not None:  # some rows may attend to nothing
        mask = mask & (torch.rand(mask.shape[:-1]) < 0.7)[..., None]
    layer = layer_with_biases(d_model, heads, **options)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    with_weights, without = (
        layer(*inputs, mask=mask, is_causal=is_causal, need_weights=need)[0]
        for need in (True, False)
    )
    torch.testing.assert_close(with_weights, without, rtol=1e-11, atol=1e-11)
    leaves = [*inputs, *layer.parameters()]
    for one, other in zip(
        gradients(with_weights, leaves),
        gradients(without, leaves),
        strict=True,
    ):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_without_key_the_layer_attends_to_itself_without_value_to_the_key():
    layer = layer_with_biases(6, 2)
    x, memory = torch.randn(2, 3, 4, 6, dtype=F64)
    assert torch.equal(layer(x)[0], layer(x, x, x)[0])
    assert torch.equal(layer(x, memory)[0], layer(x, memory, memory)[0])


def test_the_scale_is_that_of_the_head_not_of_the_model():
    # vit-pytorch #65: four heads of width 2, scaled by 1 / sqrt(2).
    layer = identity_layer(8, 4)
    query = torch.ones(1, 1, 8, dtype=F64)
    key = torch.tensor([[[1.0] * 8, [0.0] * 8]], dtype=F64)
    _, weights = layer(query, key, need_weights=True)
    torch.testing.assert_close(
        weights[0, :, 0],
        torch.tensor([[0.8044, 0.1956]] * 4, dtype=F64),
        rtol=0,
        atol=5e-5,
    )


@pytest.mark.parametrize(
    ("identity", "kv_heads"),
    [("keras3.mha.identity8", 8), ("keras3.gqa.identity8", 2)],
)
def test_eight_identical_heads_give_the_numbers_of_keras(identity, kv_heads):
    (case,) = (case for case in GOLDEN if case["id"] == identity)
    query, key, value = (
        torch.tensor(case["inputs"][name], dtype=F64) for name in "qkv"
    )
    layer = MultiHeadAttention(
        64, 8, num_kv_heads=kv_heads, kdim=8, vdim=8, bias=False
    ).double()
    eye = torch.eye(8, dtype=F64)
    with torch.no_grad():
        layer.query_proj.weight.zero_()
        layer.query_proj.weight[:, :8] = eye.repeat(8, 1)
        layer.key_proj.weight.copy_(eye.repeat(kv_heads, 1))
        layer.value_proj.weight.copy_(eye.repeat(kv_heads, 1))
        layer.output_proj.weight.zero_()
        layer.output_proj.weight[:8] = eye.repeat_interleave(8, dim=1)
    padded = nn.functional.pad(query, (0, 56))
    output, weights = layer(padded, key, value, need_weights=True)
    expected = torch.tensor(case["expected"]["weights"], dtype=F64)
    torch.testing.assert_close(
        weights,
        expected.expand(8, 1, 8, 8).transpose(0, 1),
        rtol=0,
        atol=1e-4,
    )
    sums = torch.tensor(case["expected"]["output_feature_sum"], dtype=F64)
    torch.testing.assert_close(
        output[..., :8], sums[..., None].expand(1, 8, 8), rtol=0, atol=0.01
    )


# Splitting and merging


def test_heads_are_slices_of_the_features_not_of_the_positions():
    features = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])  # FuxiCTR #30
    assert split_heads(features, 2).tolist() == [
        [[[1.0], [3.0]], [[2.0], [4.0]]]
    ]
    heads = torch.arange(8.0).reshape(1, 2, 2, 2)
    assert merge_heads(heads).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7]]]


@given(
    st.lists(st.integers(0, 3), max_size=2),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_merging_undoes_splitting_for_any_number_of_leading_axes(
    leading, length, heads, width
):
    features = torch.randn(*leading, length, heads * width)
    split = split_heads(features, heads)
    assert split.shape == (*leading, heads, length, width)
    for head in range(heads):
        assert torch.equal(
            split[..., head, :, :],
            features[..., head * width : (head + 1) * width],
        )
    assert torch.equal(merge_heads(split), features)


def test_splitting_copies_nothing_and_takes_strided_features():
    features = torch.randn(2, 6, 5).transpose(1, 2)
    split = split_heads(features, 3)
    assert split.data_ptr() == features.data_ptr()
    assert torch.equal(merge_heads(split), features)


@pytest.mark.plain
@pytest.mark.parametrize("heads", [0, -1, 4])
def test_a_number_of_heads_that_does_not_divide_is_refused(heads):
    with pytest.raises(ValueError, match=f"num_heads.*{heads}"):
        split_heads(torch.zeros(2, 3, 6), heads)


def test_grouped_heads_repeat_each_key_head_for_its_neighbours():
    # onnx #7274: values 10 and 20 reach heads 10, 10, 20, 20.
    layer = MultiHeadAttention(4, 4, num_kv_heads=2).double()
    nn.init.zeros_(layer.value_proj.weight)
    layer.value_proj.bias.data = torch.tensor([10.0, 20.0], dtype=F64)
    nn.init.eye_(layer.output_proj.weight)
    output, _ = layer(torch.randn(1, 3, 4, dtype=F64))
    expected = torch.tensor([10.0, 10, 20, 20], dtype=F64)
    torch.testing.assert_close(output, expected.expand(1, 3, 4))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_heads_equal_full_heads_with_repeated_rows(kv_heads):
    grouped = layer_with_biases(12, 6, num_kv_heads=kv_heads)
    full = MultiHeadAttention(12, 6).double()
    state = grouped.state_dict()
    for name in ("key_proj", "value_proj"):
        for kind in ("weight", "bias"):
            rows = state[f"{name}.{kind}"].unflatten(0, (kv_heads, 2))
            state[f"{name}.{kind}"] = rows.repeat_interleave(
                6 // kv_heads, dim=0
            ).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 5, 12, dtype=F64)
    for one, other in zip(
        grouped(x, is_causal=True, need_weights=True),
        full(x, is_causal=True, need_weights=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# Masks


def test_masks_of_every_rank_mean_the_same():
    batch, heads, tq, tk = 3, 2, 4, 5
    layer = layer_with_biases(6, heads)
    query = torch.randn(batch, tq, 6, dtype=F64)
    key = torch.randn(batch, tk, 6, dtype=F64)
    for shape in (
        (tq, tk),
        (batch, tq, tk),
        (batch, 1, tk),
        (1, heads, tq, tk),
        (batch, 1, 1, tk),
        (1, 1, 1, tk),
    ):
        mask = torch.rand(shape) < 0.5
        before = mask.clone()
        output, weights = layer(query, key, mask=mask, need_weights=True)
        full = to_four_axes(mask, batch, heads, tq, tk)
        expected, _ = layer(query, key, mask=full)
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
        assert (weights[~full] == 0).all()
        assert torch.equal(mask, before)


def test_a_padding_mask_belongs_to_its_sample_even_when_heads_equal_batch():
    # keras-hub #783, CLIP4Clip #22: B = H = 2, one key padded in a sample.
    layer = identity_layer(2, 2)
    zeros = torch.zeros(2, 2, 2, dtype=F64)
    for padded in (0, 1):
        mask = torch.ones(2, 1, 2, dtype=torch.bool)
        mask[padded, 0, 1] = False
        _, weights = layer(zeros, mask=mask, need_weights=True)
        expected = torch.full((2, 2), 0.5, dtype=F64)
        expected[padded] = 0.0
        torch.testing.assert_close(weights[:, :, 0, 1], expected)


def test_a_padded_query_still_attends_to_real_keys():
    # pytorch #63271: causal and key padding, the last query is padding.
    layer = identity_layer(2, 2)
    keep = torch.ones(5, 5, dtype=torch.bool).tril()[None].repeat(1, 1, 1)
    keep[..., 4] = False
    _, weights = layer(
        torch.zeros(1, 5, 2, dtype=F64), mask=keep, need_weights=True
    )
    expected = torch.tensor([0.25] * 4 + [0.0], dtype=F64)
    torch.testing.assert_close(weights[0, :, 4], expected.expand(2, 5))


def test_causal_rows_line_up_with_the_last_key():
    # pytorch #103082: zero scores, four keys, two queries or one.
    layer = identity_layer(4, 2)
    key = torch.zeros(1, 4, 4, dtype=F64)
    third = [1 / 3] * 3 + [0.0]
    for length, rows in ((1, [[0.25] * 4]), (2, [third, [0.25] * 4])):
        _, weights = layer(
            torch.zeros(1, length, 4, dtype=F64),
            key,
            is_causal=True,
            need_weights=True,
        )
        torch.testing.assert_close(
            weights[0, 1], torch.tensor(rows, dtype=F64)
        )


def test_weights_are_returned_when_asked_for_only():
    layer, x = MultiHeadAttention(4, 2), torch.randn(1, 3, 4)
    assert layer(x)[1] is None
    assert layer(x, need_weights=True)[1].shape == (1, 2, 3, 3)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("padded", [True, False])
def test_the_future_cannot_be_seen_on_any_path(
    need_weights, training, kv_heads, padded
):
    layer = layer_with_biases(8, 4, num_kv_heads=kv_heads, dropout=0.3)
    layer.train(training)
    mask = torch.ones(2, 1, 6, dtype=torch.bool)
    mask[0, 0, :2] = not padded  # padded on the left: fairseq #537
    x = torch.randn(2, 6, 8, dtype=F64, requires_grad=True)
    for position in range(6):
        output, weights = layer(
            x, mask=mask, is_causal=True, need_weights=need_weights
        )
        (gradient,) = torch.autograd.grad(output[:, position].sum(), x)
        assert (gradient[:, position + 1 :] == 0).all()
        if padded:
            # position 0 and 1 are read as queries only by themselves
            others = [p for p in (0, 1) if p != position]
            assert (gradient[0, others] == 0).all()
        if need_weights:
            assert (weights.triu(1) == 0).all()


def test_a_sample_does_not_depend_on_its_batch_or_on_its_padding():
    layer = layer_with_biases(6, 3)
    short, long = (torch.randn(1, n, 6, dtype=F64) for n in (3, 5))
    alone, _ = layer(short)
    for filler in (0.0, 1e6, -3.0):
        batch = torch.cat(
            [nn.functional.pad(short, (0, 0, 0, 2), value=filler), long]
        )
        mask = torch.ones(2, 1, 5, dtype=torch.bool)
        mask[0, 0, 3:] = False
        together, _ = layer(batch, mask=mask)
        torch.testing.assert_close(
            together[0, :3], alone[0], rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(
            together[1], layer(long)[0][0], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_no_detector_of_the_book_finds_a_leak(need_weights, kv_heads):
    layer = layer_with_biases(6, 3, num_kv_heads=kv_heads)
    x = torch.randn(3, 5, 6, dtype=F64)
    query = torch.randn(3, 2, 6, dtype=F64)
    lengths = [5, 3, 1]
    mask = padding_mask(lengths)

    def attend(inputs, key=None, **options):
        return layer(inputs, key, need_weights=need_weights, **options)[0]

    def causal(inputs):
        return attend(inputs, is_causal=True)

    def masked(inputs):
        return attend(inputs, mask=mask)

    def cross(memory):
        return attend(query, memory, mask=mask)

    assert not future_leak(causal, x)
    assert not future_leak(causal, x, method="gradient")
    assert not padding_leak(masked, x, lengths)
    assert not padding_leak(cross, x, lengths, rows="all")
    assert not batch_leak(masked, x)
    assert not order_leak(attend, x, moves=True)
    assert not order_leak(cross, x, lengths=lengths)
    assert future_leak(attend, x)  # and they do find what is there
    assert padding_leak(attend, x, lengths)
    assert order_leak(causal, x, moves=True)


@pytest.mark.parametrize("need_weights", [True, False])
def test_one_dead_row_poisons_neither_output_nor_gradients(need_weights):
    # pytorch #41508: band mask and key padding leave a row without a key.
    layer = layer_with_biases(1, 1)
    x = torch.randn(2, 4, 1, dtype=F64, requires_grad=True)
    band = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)
    mask = band.repeat(2, 1, 1)
    mask[1, :, 2:] = False
    output, weights = layer(x, mask=mask, need_weights=need_weights)
    assert torch.equal(output[1, 3], layer.output_proj.bias)
    if need_weights:
        assert (weights[1, :, 3] == 0).all()
    for gradient in gradients(output[:, :2], [x, *layer.parameters()]):
        assert gradient.isfinite().all()


def test_heads_that_are_masked_everywhere_contribute_nothing():
    # pytorch #160064: one of three heads sees no key at all.
    layer = layer_with_biases(3, 3)
    x = torch.randn(1, 5, 3, dtype=F64)
    mask = torch.ones(1, 3, 5, 5, dtype=torch.bool)
    mask[:, 2] = False
    output, weights = layer(x, mask=mask, need_weights=True)
    assert (weights[:, 2] == 0).all()
    torch.testing.assert_close(
        weights[:, :2].sum(-1), torch.ones(1, 2, 5, dtype=F64)
    )
    torch.testing.assert_close(layer(x, mask=mask)[0], output)
    layer.output_proj.weight.data[:, 2] = 0.0
    torch.testing.assert_close(layer(x)[0], output)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5,), r"\(B or 1, H or 1, Tq or 1, Tk\)"),
        ((3, 5), r"\(Tq, Tk\) = \(4, 5\).*padding mask.*mask\[:, None, :\]"),
        ((1, 5), r"\(Tq, Tk\) = \(4, 5\)"),
        ((4, 4), r"\(Tq, Tk\) = \(4, 5\)"),
        ((1, 4, 5), r"\(B, Tq or 1, Tk\) = \(3, 4 or 1, 5\)"),
        ((3, 2, 5), r"\(B, Tq or 1, Tk\) = \(3, 4 or 1, 5\)"),
        ((3, 4, 1), r"\(B, Tq or 1, Tk\) = \(3, 4 or 1, 5\)"),
        ((6, 4, 5), r"torch.*from_mha_mask\(mask, num_heads=2\)"),
        ((3, 3, 4, 5), r"= \(3 or 1, 2 or 1, 4 or 1, 5\)"),
        ((2, 2, 4, 5), r"= \(3 or 1, 2 or 1, 4 or 1, 5\)"),
        ((3, 2, 4, 1), r"= \(3 or 1, 2 or 1, 4 or 1, 5\)"),
        ((1, 3, 2, 4, 5), r"= \(3 or 1, 2 or 1, 4 or 1, 5\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_both_shapes(shape, expected):
    layer = MultiHeadAttention(6, 2)
    query, key = torch.randn(3, 4, 6), torch.randn(3, 5, 6)
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=expected) as caught:
        layer(query, key, mask=mask)
    assert str(shape) in str(caught.value)


@pytest.mark.plain
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_of_numbers_is_refused_and_told_how_to_convert(dtype):
    layer = MultiHeadAttention(6, 2)
    with pytest.raises(TypeError, match=r"mask.*mask\.bool\(\)"):
        layer(torch.randn(3, 4, 6), mask=torch.ones(4, 4, dtype=dtype))
    with pytest.raises(TypeError, match="mask"):
        layer(torch.randn(3, 4, 6), mask=[[True] * 4] * 4)


# Dropout


def test_dropout_acts_in_training_only_and_not_on_the_returned_weights():
    layer = layer_with_biases(6, 2, dropout=0.5)
    x = torch.randn(2, 5, 6, dtype=F64)
    expected, expected_weights = layer.eval()(x, need_weights=True)
    assert torch.equal(layer(x, need_weights=True)[0], expected)
    output, weights = layer.train()(x, need_weights=True)
    assert not torch.allclose(output, expected)
    torch.testing.assert_close(weights, expected_weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropping_every_weight_leaves_the_bias(need_weights):
    layer = layer_with_biases(6, 2, dropout=1.0)
    output, _ = layer(
        torch.randn(2, 5, 6, dtype=F64), need_weights=need_weights
    )
    assert torch.equal(output, layer.output_proj.bias.expand(2, 5, 6))


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_keeps_the_mean_of_the_output(need_weights):
    torch.manual_seed(0)
    layer = layer_with_biases(4, 2, dropout=0.2)
    x = torch.randn(1, 3, 4, dtype=F64)
    expected, _ = layer.eval()(x)
    layer.train()
    many = x.expand(40000, 3, 4)
    mean = layer(many, need_weights=need_weights)[0].mean(0)
    torch.testing.assert_close(mean, expected[0], rtol=0, atol=0.02)


# The cache


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.booleans(),
)
def test_any_chunking_with_a_cache_equals_all_at_once(
    chunks, kv_heads, need_weights, padded
):
    layer = layer_with_biases(8, 4, num_kv_heads=kv_heads)
    total = sum(chunks)
    x = torch.randn(2, total, 8, dtype=F64)
    mask = torch.ones(2, 1, total, dtype=torch.bool)
    mask[0, 0, :1] = not padded
    expected, expected_weights = layer(
        x, mask=mask, is_causal=True, need_weights=True
    )
    cache, start = ListCache(), 0
    assert isinstance(cache, AttentionCache)
    for size in chunks:
        stop = start + size
        assert cache.length == start
        output, weights = layer(
            x[:, start:stop],
            mask=mask[..., :stop],
            is_causal=True,
            need_weights=need_weights,
            cache=cache,
        )
        torch.testing.assert_close(
            output, expected[:, start:stop], rtol=1e-11, atol=1e-11
        )
        if need_weights:
            torch.testing.assert_close(
                weights, expected_weights[:, :, start:stop, :stop]
            )
        start = stop
    assert cache.key.shape == (2, kv_heads, total, 2)


def test_a_memory_is_projected_once_and_then_read_from_the_cache():
    layer = layer_with_biases(8, 2, kdim=6, vdim=6)
    memory = torch.randn(3, 5, 6, dtype=F64)
    queries = torch.randn(3, 2, 8, dtype=F64)
    cache = ListCache()
    layer(queries[:, :1], memory, cache=cache)
    output, _ = layer(queries[:, 1:], memory[:, :0], cache=cache)
    torch.testing.assert_close(output, layer(queries, memory)[0][:, 1:])


def test_a_subclass_learns_how_many_positions_came_before():
    class Recorder(MultiHeadAttention):
        def project(self, query, key, value, *, offset=0):
            offsets.append(offset)
            return super().project(query, key, value, offset=offset)

    offsets = []
    layer, cache = Recorder(4, 2), ListCache()
    layer(torch.randn(1, 3, 4))
    for length in (3, 1, 2):
        layer(torch.randn(1, length, 4), cache=cache)
    assert offsets == [0, 0, 3, 4]


# Parameters


def test_the_state_has_readable_names():
    assert list(MultiHeadAttention(6, 2).state_dict()) == [
        f"{name}_proj.{kind}"
        for name in ("query", "key", "value", "output")
        for kind in ("weight", "bias")
    ]
    assert list(MultiHeadAttention(6, 2, bias=False).state_dict()) == [
        f"{name}_proj.weight" for name in ("query", "key", "value", "output")
    ]


def test_the_number_of_heads_costs_no_parameter_but_shared_heads_save_some():
    def count(**options):
        layer = MultiHeadAttention(24, **options)
        return sum(parameter.numel() for parameter in layer.parameters())

    assert {count(num_heads=n) for n in (1, 2, 3, 8, 24)} == {4 * 24 * 25}
    assert count(num_heads=8, num_kv_heads=1) == 2 * 24 * 25 + 2 * 3 * 25


def test_the_start_gives_unit_variance_for_all_widths():
    torch.manual_seed(0)
    layer = MultiHeadAttention(512, 8, num_kv_heads=2, kdim=96, vdim=1024)
    inputs = (torch.randn(64, 9, width) for width in (512, 96, 1024))
    for part in layer.project(*inputs):
        assert part.var().item() == pytest.approx(1.0, rel=0.06)
    for projection in layer.children():
        bound = (3.0 / projection.in_features) ** 0.5
        largest = projection.weight.abs().max().item()
        assert 0.98 * bound < largest <= bound
        assert (projection.bias == 0).all()
    before = layer.key_proj.weight.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.key_proj.weight, before)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((6, 4), {}, "num_heads=4 does not divide d_model=6"),
        ((8, 4), {"num_kv_heads": 3}, "num_kv_heads=3.*num_heads=4"),
        ((8, 4), {"num_kv_heads": 8}, "num_kv_heads=8.*num_heads=4"),
        ((0, 1), {}, "d_model must be at least 1, got 0"),
        ((8, 0), {}, "num_heads must be at least 1"),
        ((8, -2), {}, "num_heads must be at least 1"),
        ((8, 2), {"num_kv_heads": 0}, "num_kv_heads must be at least 1"),
        ((8, 2), {"kdim": 0}, "kdim must be at least 1"),
        ((8, 2), {"vdim": -1}, "vdim must be at least 1"),
        ((8, 2), {"dropout": 1.5}, r"dropout.*1\.5"),
        ((8, 2), {"dropout": -0.1}, r"dropout.*-0\.1"),
    ],
)
def test_sizes_that_make_no_layer_are_refused_by_name(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*sizes, **options)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("sizes", "options", "name"),
    [
        ((8.0, 2), {}, "d_model"),
        ((8, "2"), {}, "num_heads"),
        ((8, True), {}, "num_heads"),
        ((8, 2), {"kdim": 4.0}, "kdim"),
    ],
)
def test_sizes_that_are_no_whole_numbers_are_refused_by_name(
    sizes, options, name
):
    with pytest.raises(TypeError, match=f"{name} must be an int"):
        MultiHeadAttention(*sizes, **options)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: (x[0],), ValueError, r"query.*\(4, 6\).*length, 6\)"),
        (lambda x: (x[..., :5],), ValueError, r"query.*\(3, 4, 5\)"),
        (lambda x: (x, x[..., :5]), ValueError, r"key.*\(3, 4, 5\)"),
        (lambda x: (x, x, x[..., :5]), ValueError, r"value.*\(3, 4, 5\)"),
        (lambda x: (x, x[:2]), ValueError, "batch sizes: 3, 2 and 2"),
        (lambda x: (x, x, x[:2]), ValueError, "batch sizes: 3, 3 and 2"),
        (lambda x: (x, x, x[:, :3]), ValueError, "length 4 .*length 3"),
        (lambda x: (x, None, x), ValueError, "value is given without key"),
        (lambda x: (x.long(),), TypeError, r"query.*torch\.int64"),
        (lambda x: (x, x.double()), TypeError, r"key.*torch\.float64"),
        (lambda x: (x, x, x.half()), TypeError, r"value.*torch\.float16"),
        (lambda x: (x.to("meta"),), ValueError, "query is on meta"),
        (lambda x: (x, x.to("meta")), ValueError, "key is on meta"),
        (lambda x: (x.numpy(),), TypeError, r"query.*ndarray"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        MultiHeadAttention(6, 2)(*call(torch.randn(3, 4, 6)))


# Numbers, types, tools


@pytest.mark.parametrize(
    ("batch", "tq", "tk"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_empty_batches_and_lengths_keep_their_shapes(
    batch, tq, tk, need_weights, is_causal
):
    layer = layer_with_biases(6, 2, num_kv_heads=1)
    query = torch.randn(batch, tq, 6, dtype=F64, requires_grad=True)
    output, weights = layer(
        query,
        torch.randn(batch, tk, 6, dtype=F64),
        mask=torch.ones(batch, 1, tk, dtype=torch.bool),
        need_weights=need_weights,
        is_causal=is_causal,
    )
    assert output.shape == (batch, tq, 6)
    if need_weights:
        assert weights.shape == (batch, 2, tq, tk)
    if tk == 0:
        assert torch.equal(output, layer.output_proj.bias.expand(batch, tq, 6))
    for gradient in gradients(output, [query, *layer.parameters()]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_gradients_agree_with_differences(need_weights, kv_heads):
    torch.manual_seed(3)
    layer = layer_with_biases(4, 2, num_kv_heads=kv_heads, kdim=3)
    inputs = [
        torch.randn(*shape, dtype=F64, requires_grad=True)
        for shape in ((2, 3, 4), (2, 2, 3), (2, 2, 4))
    ]
    mask = torch.tensor([[True, False], [False, False], [True, True]])

    def run(query, key, value, *_):
        output, weights = layer(
            query, key, value, mask=mask, need_weights=need_weights
        )
        return output if weights is None else (output, weights)

    assert torch.autograd.gradcheck(run, (*inputs, *layer.parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("need_weights", [True, False])
def test_half_precision_stays_close_to_full_and_keeps_its_type(
    dtype, need_weights
):
    torch.manual_seed(0)
    layer = layer_with_biases(16, 4, dtype=dtype)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(3, 7, 16).to(dtype)
    mask = torch.rand(3, 7, 7) < 0.4
    output, weights = layer(x, mask=mask, need_weights=need_weights)
    expected, expected_weights = exact(
        x.double(), mask=mask, need_weights=need_weights
    )
    unit = torch.finfo(dtype).eps
    assert output.dtype == dtype
    assert (output.double() - expected).abs().max() < 12 * unit
    if need_weights:
        assert weights.dtype == dtype
        assert (weights.double() - expected_weights).abs().max() < 8 * unit


@pytest.mark.parametrize("need_weights", [True, False])
def test_scores_beyond_half_precision_do_not_overflow(need_weights):
    # pytorch #160841: q·k of entries 256 at width 80 is 5,242,880.
    layer = identity_layer(80, 1).half()
    x = torch.full((1, 3, 80), 256.0, dtype=torch.float16)
    output, _ = layer(x, need_weights=need_weights)
    assert torch.equal(output, x)


def test_autocast_computes_in_half_precision_and_trains():
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4)
    x = torch.randn(2, 5, 16)
    expected, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x, need_weights=True)
        mixed, _ = layer(x, x.bfloat16())
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=0.05)
    torch.testing.assert_close(mixed.float(), expected, rtol=0, atol=0.05)
    output.float().sum().backward()
    assert layer.query_proj.weight.grad.dtype == torch.float32


def test_inputs_masks_and_parameters_are_left_as_they_were():
    layer = layer_with_biases(6, 2, dropout=0.5)
    x, key = torch.randn(2, 2, 4, 6, dtype=F64)
    mask = torch.rand(2, 4, 4) < 0.5
    held = [x, key, mask, *layer.parameters()]
    before = [tensor.clone() for tensor in held]
    for need_weights in (True, False):
        layer(x, key, mask=mask, is_causal=True, need_weights=need_weights)[
            0
        ].sum().backward()
    for tensor, copied in zip(held, before, strict=True):
        assert torch.equal(tensor, copied)


def test_strided_inputs_give_the_same_output():
    layer = layer_with_biases(6, 3)
    x = torch.randn(6, 4, 2, dtype=F64).permute(2, 1, 0)
    assert not x.is_contiguous()
    torch.testing.assert_close(layer(x)[0], layer(x.contiguous())[0])


def test_permuting_keys_permutes_weights_and_keeps_the_output():
    layer = layer_with_biases(6, 2)
    query = torch.randn(2, 3, 6, dtype=F64)
    key = torch.randn(2, 5, 6, dtype=F64)
    order = torch.tensor([3, 0, 4, 2, 1])
    output, weights = layer(query, key, need_weights=True)
    moved, moved_weights = layer(query, key[:, order], need_weights=True)
    torch.testing.assert_close(moved, output)
    torch.testing.assert_close(moved_weights, weights[..., order])


def test_a_layer_can_be_copied_and_stored():
    layer = layer_with_biases(6, 2, num_kv_heads=1, kdim=4)
    x, key = torch.randn(2, 3, 6, dtype=F64), torch.randn(2, 5, 4, dtype=F64)
    key_value = (key, torch.randn(2, 5, 6, dtype=F64))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, *key_value)[0], layer(x, *key_value)[0])
    assert "num_kv_heads=1" in repr(layer)


@pytest.mark.plain
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_layer_compiles_into_one_graph(need_weights, kv_heads):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 4, num_kv_heads=kv_heads)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, 8, requires_grad=True)
    mask = torch.rand(2, 1, 5) < 0.7
    expected, weights = layer(
        x, mask=mask, is_causal=True, need_weights=need_weights
    )
    output, compiled_weights = compiled(
        x, mask=mask, is_causal=True, need_weights=need_weights
    )
    torch.testing.assert_close(output, expected)
    if need_weights:
        torch.testing.assert_close(compiled_weights, weights)
    for one, other in zip(
        gradients(output, [x]), gradients(expected, [x]), strict=True
    ):
        torch.testing.assert_close(one, other)


REFUSED = {
    "a mask without the stored keys": {"mask": torch.ones(1, 3).bool()},
    "a mask of numbers": {"mask": torch.ones(1, 4)},
    "weights": {"need_weights": 1},
    "causal": {"is_causal": 1},
}


@pytest.mark.plain
@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_a_refused_call_leaves_the_cache_as_it_was(options):
    layer = MultiHeadAttention(8, 2).requires_grad_(False)
    words, cache = torch.randn(1, 4, 8), ListCache()
    layer(words[:, :3], is_causal=True, cache=cache)
    with pytest.raises((TypeError, ValueError)):
        layer(words[:, 3:], cache=cache, **options)
    assert cache.length == 3
    rest, _ = layer(words[:, 3:], is_causal=True, cache=cache)
    at_once, _ = layer(words, is_causal=True)
    torch.testing.assert_close(rest, at_once[:, 3:])


@pytest.mark.plain
@pytest.mark.parametrize("axes", [2, 3, 4])
def test_one_graph_serves_masks_of_many_lengths(axes):
    layer = MultiHeadAttention(8, 2).eval()
    compiled = torch.compile(
        lambda x, mask: layer(x, mask=mask)[0],
        fullgraph=True,
        backend="eager",
        dynamic=True,
    )
    for batch, length in [(3, 5), (4, 6), (5, 17)]:
        shape = {2: (length, length), 3: (batch, 1, length)}
        mask = torch.rand(shape.get(axes, (batch, 2, length, length))) > 0.3
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(compiled(x, mask), layer(x, mask=mask)[0])
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_per_sample_gradients_with_masks_are_those_of_single_samples():
    layer = MultiHeadAttention(4, 2)
    parameters = dict(layer.named_parameters())
    xs, masks = torch.randn(2, 3, 4), padding_mask([1, 3], 3)

    def loss(parameters, x, mask):
        return torch.func.functional_call(
            layer, parameters, (x[None],), {"mask": mask[None]}
        )[0].square().sum()  # fmt: skip

    gradient = torch.func.grad(loss)
    found = torch.vmap(gradient, in_dims=(None, 0, 0))(parameters, xs, masks)
    for row in range(2):
        alone = gradient(parameters, xs[row], masks[row])
        for name, expected in alone.items():
            torch.testing.assert_close(found[name][row], expected)


@pytest.mark.plain
def test_a_layer_that_marks_positions_is_not_handed_to_pytorch():
    class Marking(MultiHeadAttention):
        def mark_positions(self, heads, *, offset=0):
            return heads + offset

    with pytest.raises(ValueError, match="Marking marks positions"):
        Marking(8, 2).to_torch()
