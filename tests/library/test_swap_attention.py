"""A model with our attention inside answers as the one with PyTorch's."""

import copy

import pytest
import torch
from torch import nn

from attention_lib.interop import swap_attention

B, T, S, WIDTH, HEADS = 3, 5, 4, 8, 2
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)
PADS = torch.arange(T) >= torch.tensor([[5], [3], [1]])


def additive(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


MASKS = {
    "none": {},
    "causal": {"attn_mask": FUTURE},
    "additive": {"attn_mask": additive(FUTURE)},
    "hint": {"attn_mask": FUTURE, "is_causal": True},
    "heads": {"attn_mask": FUTURE.repeat(B * HEADS, 1, 1)},
    "pads": {"key_padding_mask": PADS},
    "both": {"attn_mask": FUTURE, "key_padding_mask": PADS},
}


def same(first, second):
    if first is None or second is None:
        assert first is second
    else:
        assert first.shape == second.shape
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 6, "vdim": 4, "bias": False}]
)
def test_the_layer_keeps_its_call(options, masks, batch_first, training):
    theirs = nn.MultiheadAttention(
        WIDTH, HEADS, batch_first=batch_first, **options
    ).train(training)
    ours = swap_attention(theirs)
    assert ours.training == training
    assert not isinstance(ours, nn.MultiheadAttention)
    widths = WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH)
    inputs = [torch.randn(B, T, width) for width in widths]
    if not batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    for shown in (
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
    ):
        results = [m(*inputs, **masks, **shown) for m in (theirs, ours)]
        for first, second in zip(*results, strict=True):
            same(first, second)
    by_place = (
        theirs(*inputs, None, True, FUTURE),
        ours(*inputs, None, True, FUTURE),
    )
    same(by_place[0][0], by_place[1][0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_inputs_without_a_batch(batch_first):
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)
    ours = swap_attention(theirs)
    x, memory = torch.randn(T, WIDTH), torch.randn(S, WIDTH)
    for masks in (
        {},
        {"key_padding_mask": torch.tensor([False, True, False, True])},
        {"attn_mask": FUTURE[:, :S]},
        {"attn_mask": FUTURE[:, :S].repeat(HEADS, 1, 1)},
    ):
        results = [m(x, memory, memory, **masks) for m in (theirs, ours)]
        for first, second in zip(*results, strict=True):
            same(first, second)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_whole_transformer_gives_equal_outputs_and_gradients(
    batch_first, norm_first, training
):
    options = {"batch_first": batch_first, "norm_first": norm_first}
    theirs = nn.Transformer(WIDTH, HEADS, 2, 2, 16, dropout=0.0, **options)
    theirs.train(training)
    kept = copy.deepcopy(theirs)
    ours = swap_attention(theirs)
    source, target = torch.randn(2, B, T, WIDTH)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    masks = {
        "src_key_padding_mask": PADS,
        "memory_key_padding_mask": PADS,
        "tgt_mask": additive(FUTURE),
        "tgt_is_causal": True,
    }
    outputs = [m(source, target, **masks) for m in (theirs, ours)]
    same(*outputs)
    for output in outputs:
        output.square().mean().backward()
    same(theirs.encoder.layers[0].linear1.weight.grad,
         ours.encoder.layers[0].linear1.weight.grad)  # fmt: skip
    assert not any(
        isinstance(m, nn.MultiheadAttention) for m in ours.modules()
    )
    for (
        name,
        parameter,
    ) in theirs.named_parameters():  # the caller's is as it was
        assert torch.equal(parameter, kept.get_parameter(name))
        parameter.data.fill_(1.0)
    same(outputs[1], ours(source, target, **masks))  # and no memory is shared


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_no_fast_path_goes_past_the_layer():
    """In evaluation PyTorch's blocks read the parameters and compute alone."""
    block = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    theirs = nn.TransformerEncoder(block, 2).eval()
    ours, calls = swap_attention(theirs), []
    for layer in ours.layers:
        # Not a hook, which would close the fast path by itself.
        forward = layer.self_attn.layer.forward
        layer.self_attn.layer.forward = lambda *x, f=forward, **k: (
            calls.append(1) or f(*x, **k)
        )
    x = torch.randn(B, T, WIDTH)
    with torch.no_grad():
        for masks in ({}, {"mask": FUTURE}, {"src_key_padding_mask": PADS}):
            real = ~masks.get("src_key_padding_mask", PADS & False)
            same(theirs(x, **masks)[real], ours(x, **masks)[real])
    assert len(calls) == 6


def test_a_layer_in_two_places_stays_one():
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    pair = nn.ModuleDict({"first": layer, "second": layer})
    ours = swap_attention(pair)
    assert ours["first"] is ours["second"]
    assert pair["first"] is layer


def test_type_dropout_and_frozen_parameters_are_kept():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3).double()
    theirs.requires_grad_(False)
    ours = swap_attention(nn.Sequential(theirs))[0]
    assert ours.layer.dropout == 0.3
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    assert not any(p.requires_grad for p in ours.parameters())


def test_a_row_with_nothing_to_attend_to_gives_zero():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x, nothing = torch.randn(B, T, WIDTH), PADS | True
    _, weights = swap_attention(theirs)(x, x, x, key_padding_mask=nothing)
    assert torch.equal(weights, torch.zeros(B, T, T))


def test_causal_without_a_mask_is_causal():
    """PyTorch calls it a hint, and refuses it alone."""
    ours = swap_attention(nn.MultiheadAttention(WIDTH, HEADS))
    x = torch.randn(T, B, WIDTH)
    same(ours(x, x, x, is_causal=True)[0], ours(x, x, x, attn_mask=FUTURE)[0])


class Own(nn.MultiheadAttention):
    def forward(self, query, key, value, **_):
        return value, None


@pytest.mark.plain
@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), "1: .*add_bias_kv"),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), "add_zero_attn"),
        (Own(8, 2), "1 has a forward of its own"),
        (nn.Identity(), "holds no torch.nn.MultiheadAttention"),
    ],
)
def test_what_cannot_be_swapped_is_refused_and_nothing_is_changed(
    inner, words
):
    model = nn.Sequential(nn.Linear(8, 8), inner)
    before = str(model)
    with pytest.raises(ValueError, match=words):
        swap_attention(model)
    assert str(model) == before


@pytest.mark.plain
def test_a_bias_is_no_mask():
    ours = swap_attention(nn.MultiheadAttention(WIDTH, HEADS))
    x = torch.randn(T, B, WIDTH)
    with pytest.raises(ValueError, match="it is a bias"):
        ours(x, x, x, attn_mask=torch.randn(T, T))
