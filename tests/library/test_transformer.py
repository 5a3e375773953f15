"""The Transformer: positions, blocks equal to PyTorch's, the translator."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import (
    ListCache,
    assert_gradients_are_those_of,
    gradients,
    randomised,
)
from torch import nn
from torch.nn import functional as F

from attention_lib import reference
from attention_lib.course.corpus import (
    CHINESE,
    ENGLISH,
    make_batch,
    sample_pairs,
)
from attention_lib.course.evaluation import evaluate
from attention_lib.course.search import beam_search, greedy_decode
from attention_lib.course.training import train_run
from attention_lib.leaks import (
    batch_leak,
    future_leak,
    order_leak,
    padding_leak,
)
from attention_lib.masks import causal_mask, padding_mask
from attention_lib.multihead import MultiHeadAttention
from attention_lib.positions import (
    LearnedPositions,
    SinusoidalPositions,
    rotate,
    sinusoidal_encoding,
)
from attention_lib.seq2seq import Memory
from attention_lib.transformer import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LanguageModel,
    Residual,
    RotaryMultiHeadAttention,
    TransformerDecoder,
    TransformerEncoder,
    transformer_model,
)

F64 = torch.float64
KINDS = ["sinusoidal", "learned", "rotary", "none"]


def toy_memory(batch, length, width, lengths=None, dtype=torch.float32):
    lengths = [length] * batch if lengths is None else lengths
    return Memory(
        torch.randn(batch, length, width, dtype=dtype),
        padding_mask(lengths, length),
        None,
    )


# --- positions: sinusoidal -------------------------------------------------


def test_the_encoding_follows_the_formula_of_the_paper():
    encoding = sinusoidal_encoding(torch.arange(50), 6, dtype=F64)
    for position in range(50):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert encoding[position, 2 * i] == pytest.approx(np.sin(angle))
            assert encoding[position, 2 * i + 1] == pytest.approx(
                np.cos(angle)
            )


@given(
    shift=st.integers(-20, 20),
    pairs=st.integers(1, 8),
    base=st.sampled_from([100.0, 10000.0]),
)
@settings(deadline=None)
def test_a_shift_is_one_rotation_whatever_the_position(shift, pairs, base):
    d_model = 2 * pairs
    positions = torch.arange(40)
    here = sinusoidal_encoding(positions, d_model, base=base, dtype=F64)
    there = sinusoidal_encoding(
        positions + shift, d_model, base=base, dtype=F64
    )
    # The matrix knows the shift and not the position.
    frequencies = base ** (-torch.arange(0, d_model, 2, dtype=F64) / d_model)
    blocks = []
    for angle in (shift * frequencies).tolist():
        sine, cosine = np.sin(angle), np.cos(angle)
        blocks.append(torch.tensor([[cosine, -sine], [sine, cosine]]))
    matrix = torch.block_diag(*blocks).to(F64)
    torch.testing.assert_close(here @ matrix, there)


def test_every_encoding_has_the_same_length():
    encoding = sinusoidal_encoding(torch.arange(300), 10, dtype=F64)
    torch.testing.assert_close(
        encoding.norm(dim=1), torch.full((300,), 5**0.5, dtype=F64)
    )


def test_the_product_of_two_encodings_depends_on_their_distance_alone():
    near = sinusoidal_encoding(torch.tensor([2, 5]), 16, dtype=F64)
    far = sinusoidal_encoding(torch.tensor([102, 105]), 16, dtype=F64)
    torch.testing.assert_close(near[0] @ near[1], far[0] @ far[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_not_computed_in_half_precision(dtype):
    """bfloat16 cannot tell 256 from 257; their encodings differ."""
    positions = torch.tensor([256, 257, 1001])
    narrow = sinusoidal_encoding(positions, 8, dtype=dtype)
    wide = sinusoidal_encoding(positions, 8)
    assert narrow.dtype == dtype
    torch.testing.assert_close(narrow, wide.to(dtype))
    features = torch.randn(3, 8).to(dtype)
    turned = rotate(features, positions)
    assert turned.dtype == dtype
    torch.testing.assert_close(
        turned, rotate(features.float(), positions).to(dtype)
    )


def test_sinusoidal_positions_are_added_from_the_offset_on():
    layer = SinusoidalPositions(6)
    features = torch.randn(2, 9, 6)
    whole = layer(features)
    torch.testing.assert_close(layer(features[:, 4:], offset=4), whole[:, 4:])
    torch.testing.assert_close(
        whole - features,
        sinusoidal_encoding(torch.arange(9), 6).expand(2, 9, 6),
    )
    assert not list(layer.parameters())


# --- positions: learned ----------------------------------------------------


def test_learned_positions_are_added_from_the_offset_on():
    layer = LearnedPositions(9, 6)
    features = torch.randn(2, 9, 6)
    whole = layer(features)
    torch.testing.assert_close(
        whole - features, layer.table.weight.expand(2, 9, 6)
    )
    torch.testing.assert_close(layer(features[:, 4:], offset=4), whole[:, 4:])


@pytest.mark.plain
@pytest.mark.parametrize(("length", "offset"), [(6, 0), (1, 5), (3, 3)])
def test_a_position_beyond_the_table_is_an_error_that_names_it(length, offset):
    layer = LearnedPositions(5, 4)
    with pytest.raises(
        ValueError, match=r"position 5 is beyond.*max_length=5"
    ):
        layer(torch.zeros(1, length, 4), offset=offset)


# --- positions: rotary -----------------------------------------------------


def test_rotation_is_multiplication_by_a_complex_number():
    features = torch.randn(2, 3, 7, 6, dtype=F64)
    positions = torch.arange(7)
    turned = rotate(features, positions)
    frequencies = 10000.0 ** (-torch.arange(0, 6, 2, dtype=F64) / 6)
    turn = torch.exp(1j * positions[:, None] * frequencies)
    complex_features = torch.view_as_complex(features.unflatten(-1, (3, 2)))
    expected = torch.view_as_real(complex_features * turn).flatten(-2)
    torch.testing.assert_close(turned, expected)


@given(
    query_position=st.integers(0, 500),
    key_position=st.integers(0, 500),
    shift=st.integers(-500, 500),
)
@settings(deadline=None)
def test_rotary_scores_depend_on_the_distance_alone(
    query_position, key_position, shift
):
    query, key = torch.linspace(-1, 2, 16, dtype=F64).view(2, 1, 8)

    def score(at_query, at_key):
        turned_query = rotate(query, torch.tensor([at_query]))
        return turned_query @ rotate(key, torch.tensor([at_key])).mT

    torch.testing.assert_close(
        score(query_position, key_position),
        score(query_position + shift, key_position + shift),
    )


def test_rotation_keeps_lengths_and_leaves_position_zero_alone():
    features = torch.randn(4, 11, 6, dtype=F64)
    turned = rotate(features, torch.arange(11))
    torch.testing.assert_close(turned.norm(dim=-1), features.norm(dim=-1))
    torch.testing.assert_close(turned[:, 0], features[:, 0])
    assert (turned[:, 1:] - features[:, 1:]).abs().amax(-1).min() > 1e-3


def test_rotation_takes_other_positions_for_each_sample():
    features = torch.randn(2, 3, 4, dtype=F64)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    turned = rotate(features, positions)
    for sample in range(2):
        torch.testing.assert_close(
            turned[sample], rotate(features[sample], positions[sample])
        )


def test_rotation_has_the_right_gradient_and_writes_to_nothing():
    features = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: rotate(x, torch.arange(3)), features
    )
    before = features.detach().clone()
    rotate(features.detach(), torch.arange(3))
    assert torch.equal(before, features.detach())


@pytest.mark.plain
@pytest.mark.parametrize(
    "call",
    [
        lambda: sinusoidal_encoding(torch.arange(3), 5),
        lambda: rotate(torch.zeros(3, 5), torch.arange(3)),
    ],
)
def test_an_odd_width_is_an_error_that_says_why(call):
    with pytest.raises(ValueError, match=r"one sine and one cosine.*got 5"):
        call()


def test_shapes_can_be_inferred_without_numbers():
    features = torch.empty(2, 5, 6, device="meta")
    positions = torch.arange(5, device="meta")
    assert rotate(features, positions).shape == features.shape
    assert sinusoidal_encoding(positions, 6).shape == (5, 6)


def test_rotary_attention_turns_queries_and_keys_and_not_values():
    layer = RotaryMultiHeadAttention(8, 2).double()
    plain = MultiHeadAttention(8, 2).double()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 5, 8, dtype=F64)
    turned = layer.project(x, x, x)
    straight = plain.project(x, x, x)
    positions = torch.arange(5)
    torch.testing.assert_close(turned[0], rotate(straight[0], positions))
    torch.testing.assert_close(turned[1], rotate(straight[1], positions))
    assert torch.equal(turned[2], straight[2])


def test_rotary_attention_ignores_where_the_sequence_begins():
    """Only distances count, so padding in front changes nothing."""
    layer = RotaryMultiHeadAttention(8, 2).double()
    x = torch.randn(3, 5, 8, dtype=F64)
    padded = torch.cat([torch.randn(3, 4, 8, dtype=F64), x], dim=1)
    mask = padding_mask([5, 5, 5], 9, side="left")
    torch.testing.assert_close(layer(padded, mask=mask)[0][:, 4:], layer(x)[0])


def test_rotary_attention_continues_where_the_cache_ends():
    layer = RotaryMultiHeadAttention(8, 2, num_kv_heads=1).double()
    x = torch.randn(3, 7, 8, dtype=F64)
    whole, _ = layer(x, is_causal=True)
    cache = ListCache()
    parts = [
        layer(part, is_causal=True, cache=cache)[0]
        for part in x.split([3, 1, 2, 1], dim=1)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


# --- order -----------------------------------------------------------------


def test_self_attention_alone_does_not_see_order():
    block = randomised(EncoderBlock(8, 2)).double()
    x = torch.randn(3, 6, 8, dtype=F64)
    assert not order_leak(block, x, moves=True)


@pytest.mark.parametrize("norm_first", [True, False])
@given(seed=st.integers(0, 10**6), length=st.integers(1, 7))
@settings(max_examples=15, deadline=None)
def test_permuting_the_words_permutes_the_states(norm_first, seed, length):
    block = EncoderBlock(8, 2, norm_first=norm_first).double()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(length, generator=generator)
    x = torch.randn(2, length, 8, dtype=F64, generator=generator)
    torch.testing.assert_close(block(x[:, order])[0], block(x)[0][:, order])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_and_nothing_else_make_an_encoder_see_order(kind):
    encoder = TransformerEncoder(20, 8, 2, 1, positions=kind).eval()
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    lengths = torch.tensor([6])

    def states(tokens):
        return encoder(tokens, lengths).states

    leak = order_leak(states, tokens, moves=True)
    assert bool(leak) == (kind != "none")


def test_a_causal_mask_alone_lets_a_model_see_order():
    block = EncoderBlock(8, 2).double()
    x = torch.randn(3, 6, 8, dtype=F64)
    assert order_leak(lambda x: block(x, is_causal=True), x, moves=True)


# --- the pieces of a block -------------------------------------------------


def test_a_residual_is_pre_norm_or_post_norm_as_its_equation_says():
    x = torch.randn(2, 3, 8)
    sublayer = nn.Linear(8, 8)
    pre, post = Residual(8), Residual(8, norm_first=False)
    for residual in (pre, post):
        nn.init.normal_(residual.norm.weight)
        nn.init.normal_(residual.norm.bias)
    torch.testing.assert_close(
        pre.add(x, sublayer(pre.read(x))), x + sublayer(pre.norm(x))
    )
    torch.testing.assert_close(
        post.add(x, sublayer(post.read(x))), post.norm(x + sublayer(x))
    )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_feed_forward_layer_works_on_each_position_alone(activation):
    layer = FeedForward(6, 10, activation=activation).double()
    x = torch.randn(2, 5, 6, dtype=F64)
    whole = layer(x)
    for position in range(5):
        torch.testing.assert_close(
            layer(x[:, position : position + 1])[:, 0], whole[:, position]
        )
    act = F.relu if activation == "relu" else F.gelu
    by_hand = act(x @ layer.input_proj.weight.T + layer.input_proj.bias)
    by_hand = by_hand @ layer.output_proj.weight.T + layer.output_proj.bias
    torch.testing.assert_close(whole, by_hand)


@pytest.mark.plain
def test_an_unknown_activation_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="'relu' or 'gelu', got 'silu'"):
        FeedForward(4, 8, activation="silu")


def by_hand(x, norm):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(variance + norm.eps)
    return scaled * norm.weight.numpy() + norm.bias.numpy()


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_block_equals_its_equations_in_numpy(norm_first):
    block = randomised(
        EncoderBlock(6, 2, 10, norm_first=norm_first).double()
    ).requires_grad_(False)
    x = np.random.default_rng(0).normal(size=(5, 6))

    def linear(layer, x):
        return x @ layer.weight.numpy().T + layer.bias.numpy()

    def attention(x):
        layer = block.self_attention
        heads = []
        for h in (slice(0, 3), slice(3, 6)):
            context, _ = reference.attention(
                linear(layer.query_proj, x)[:, h],
                linear(layer.key_proj, x)[:, h],
                linear(layer.value_proj, x)[:, h],
            )
            heads.append(context)
        return linear(layer.output_proj, np.concatenate(heads, axis=-1))

    def feed_forward(x):
        layer = block.feed_forward
        hidden = np.maximum(linear(layer.input_proj, x), 0)
        return linear(layer.output_proj, hidden)

    norms = block.self_residual.norm, block.feed_forward_residual.norm
    expected = x
    for sublayer, norm in zip((attention, feed_forward), norms, strict=True):
        if norm_first:
            expected = expected + sublayer(by_hand(expected, norm))
        else:
            expected = by_hand(expected + sublayer(expected), norm)
    ours, _ = block(torch.from_numpy(x)[None])
    np.testing.assert_allclose(ours[0].numpy(), expected, atol=1e-12)


def test_defaults_are_those_of_the_page():
    block = EncoderBlock(8, 2)
    assert block.norm_first
    assert block.feed_forward.input_proj.out_features == 32
    assert block.feed_forward.activation == "relu"
    model = transformer_model()
    for stack in (model.encoder, model.decoder):
        assert len(stack.blocks) == 2
        for block in stack.blocks:
            assert (block.d_model, block.num_heads) == (64, 4)
            assert block.norm_first
            assert block.self_attention.dropout == 0
    words = transformer_model(positions="learned").encoder.embedding
    assert words.positions.table.weight.shape == (512, 64)


# --- exchange with PyTorch -------------------------------------------------

CONFIGURATIONS = [
    {"norm_first": norm_first, "activation": activation, "bias": bias}
    for norm_first in (True, False)
    for activation in ("relu", "gelu")
    for bias in (True, False)
]


def theirs(kind, training=True, batch_first=True, **options):
    """One of PyTorch's layers, with all parameters away from their start."""
    layer = kind(
        6,
        2,
        10,
        dropout=0.0,
        layer_norm_eps=1e-3,
        batch_first=batch_first,
        dtype=F64,
        **options,
    )
    return randomised(layer).train(training)


@pytest.mark.parametrize("kind", [nn.GELU, nn.ReLU])
def test_an_activation_may_be_a_module(kind):
    layer = theirs(nn.TransformerEncoderLayer, activation=kind())
    x = torch.randn(3, 5, 6, dtype=F64)
    output, _ = EncoderBlock.from_torch(layer)(x)
    torch.testing.assert_close(output, layer(x))


def test_the_other_gelu_is_refused():
    layer = nn.TransformerEncoderLayer(6, 2, activation=nn.GELU("tanh"))
    with pytest.raises(ValueError, match="the exact GELU"):
        EncoderBlock.from_torch(layer)


@pytest.mark.parametrize("options", CONFIGURATIONS)
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_block_copies_pytorchs_layer(options, training):
    layer = theirs(nn.TransformerEncoderLayer, training, **options)
    block = EncoderBlock.from_torch(layer)
    assert block.training == training
    x = torch.randn(3, 5, 6, dtype=F64, requires_grad=True)
    mask = padding_mask([5, 2, 4], 5) & causal_mask(5)
    expected = layer(x, src_mask=~mask.repeat_interleave(2, 0))
    output, _ = block(x, mask=mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(output, x), gradients(expected, x))
    mine = gradients(block(x, mask=mask)[0], list(block.parameters()))
    assert all(torch.isfinite(grad).all() for grad in mine)


@pytest.mark.parametrize("options", CONFIGURATIONS)
def test_every_parameter_of_an_encoder_block_gets_pytorchs_gradient(options):
    layer = theirs(nn.TransformerEncoderLayer, **options)
    block = EncoderBlock.from_torch(layer)
    x = torch.randn(3, 5, 6, dtype=F64)
    layer(x).sin().sum().backward()
    block(x)[0].sin().sum().backward()
    assert_gradients_are_those_of(layer, block)


@pytest.mark.parametrize("options", CONFIGURATIONS)
@pytest.mark.parametrize("training", [True, False])
def test_a_decoder_block_copies_pytorchs_layer(options, training):
    layer = theirs(nn.TransformerDecoderLayer, training, **options)
    block = DecoderBlock.from_torch(layer)
    target = torch.randn(3, 4, 6, dtype=F64, requires_grad=True)
    memory = torch.randn(3, 5, 6, dtype=F64, requires_grad=True)
    memory_mask = padding_mask([5, 2, 4], 5)
    expected = layer(
        target,
        memory,
        tgt_mask=~causal_mask(4),
        memory_key_padding_mask=~memory_mask[:, 0],
    )
    output, _, _ = block(target, memory, memory_mask=memory_mask)
    torch.testing.assert_close(output, expected)
    inputs = (target, memory)
    torch.testing.assert_close(
        gradients(output, inputs), gradients(expected, inputs)
    )
    output, _, _ = block(target, memory, is_causal=False)
    torch.testing.assert_close(output, layer(target, memory))


@pytest.mark.parametrize("options", CONFIGURATIONS)
def test_every_parameter_of_a_decoder_block_gets_pytorchs_gradient(options):
    layer = theirs(nn.TransformerDecoderLayer, **options)
    block = DecoderBlock.from_torch(layer)
    target = torch.randn(3, 4, 6, dtype=F64)
    memory = torch.randn(3, 5, 6, dtype=F64)
    layer(target, memory, tgt_mask=~causal_mask(4)).sin().sum().backward()
    block(target, memory)[0].sin().sum().backward()
    assert_gradients_are_those_of(layer, block)


@pytest.mark.parametrize("options", CONFIGURATIONS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        (nn.TransformerEncoderLayer, EncoderBlock),
        (nn.TransformerDecoderLayer, DecoderBlock),
    ],
)
def test_the_round_trip_is_exact(kind, ours, batch_first, options):
    layer = theirs(kind, False, batch_first, **options)
    back = ours.from_torch(layer).to_torch(batch_first=batch_first)
    assert type(back) is kind
    assert not back.training
    assert back.self_attn.batch_first == batch_first
    assert back.norm_first == layer.norm_first
    assert back.activation is layer.activation
    assert back.norm1.eps == layer.norm1.eps
    before, after = layer.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value)
        assert after[name].data_ptr() != value.data_ptr()
    inputs = [torch.randn(3, 3, 6, dtype=F64)]
    if kind is nn.TransformerDecoderLayer:
        inputs.append(torch.randn(3, 3, 6, dtype=F64))
    assert torch.equal(back(*inputs), layer(*inputs))


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_dropout_and_frozen_parameters_survive_the_exchange(rate):
    layer = nn.TransformerEncoderLayer(6, 2, 10, rate, batch_first=True)
    layer.linear1.weight.requires_grad_(False)
    block = EncoderBlock.from_torch(layer)
    assert block.self_attention.dropout == rate
    assert block.self_residual.dropout.p == rate
    assert block.feed_forward_residual.dropout.p == rate
    assert block.feed_forward.dropout.p == rate
    assert not block.feed_forward.input_proj.weight.requires_grad
    assert block.feed_forward.input_proj.bias.requires_grad
    back = block.to_torch()
    assert back.dropout.p == back.dropout1.p == back.dropout2.p == rate
    assert not back.linear1.weight.requires_grad


def test_copying_draws_no_random_number():
    layer = nn.TransformerDecoderLayer(6, 2, 10)
    state = torch.get_rng_state()
    DecoderBlock.from_torch(layer).to_torch()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.plain
def test_what_cannot_be_exchanged_is_refused_with_a_reason():
    encoder = nn.TransformerEncoderLayer(4, 2)
    decoder = nn.TransformerDecoderLayer(4, 2)
    with pytest.raises(TypeError, match="TransformerEncoderLayer, got Tr"):
        EncoderBlock.from_torch(decoder)
    with pytest.raises(TypeError, match="TransformerDecoderLayer, got Tr"):
        DecoderBlock.from_torch(encoder)
    for block in (
        EncoderBlock(4, 2, rotary=True),
        DecoderBlock(4, 2, rotary=True),
    ):
        with pytest.raises(ValueError, match="is rotary"):
            block.to_torch()
    encoder.dropout2.p = 0.5
    with pytest.raises(ValueError, match=r"different dropout.*0\.1, 0\.5"):
        EncoderBlock.from_torch(encoder)
    swish = nn.TransformerEncoderLayer(4, 2, activation=F.silu)
    with pytest.raises(ValueError, match="has the activation"):
        EncoderBlock.from_torch(swish)


# --- what blocks let through -----------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
def test_blocks_hide_future_padding_and_other_samples(norm_first, rotary):
    options = {"norm_first": norm_first, "rotary": rotary}
    encoder = randomised(EncoderBlock(8, 2, **options).double())
    decoder = randomised(DecoderBlock(8, 2, **options).double())
    x = torch.randn(3, 5, 8, dtype=F64)
    memory = torch.randn(3, 6, 8, dtype=F64)
    lengths = [5, 2, 3]
    mask = padding_mask(lengths, 5)
    assert not future_leak(lambda x: encoder(x, is_causal=True), x)
    assert not padding_leak(lambda x: encoder(x, mask=mask), x, lengths)
    assert not batch_leak(lambda x: encoder(x, mask=mask), x)
    assert not future_leak(lambda x: decoder(x, memory), x)
    assert not future_leak(lambda x: decoder(x, memory), x, method="gradient")
    assert not padding_leak(
        lambda m: decoder(memory, m, memory_mask=mask), x, lengths, rows="all"
    )
    assert not order_leak(lambda m: decoder(x, m), memory)
    # and the detectors would have noticed
    assert future_leak(encoder, x)
    assert future_leak(lambda x: decoder(x, memory, is_causal=False), x)
    assert padding_leak(encoder, x, lengths)


def test_weights_are_those_of_the_attentions_and_change_no_output():
    block = DecoderBlock(8, 2).double()
    x = torch.randn(3, 4, 8, dtype=F64)
    memory = torch.randn(3, 6, 8, dtype=F64)
    states, own, cross = block(x, memory, need_weights=True)
    torch.testing.assert_close(block(x, memory)[0], states)
    assert block(x, memory)[1:] == (None, None)
    assert own.shape == (3, 2, 4, 4)
    assert cross.shape == (3, 2, 4, 6)
    assert own.triu(1).abs().max() == 0
    torch.testing.assert_close(cross.sum(-1), torch.ones(3, 2, 4, dtype=F64))


@pytest.mark.parametrize("norm_first", [True, False])
def test_gradients_of_blocks_are_those_of_finite_differences(norm_first):
    block = DecoderBlock(4, 2, 6, norm_first=norm_first, activation="gelu")
    block = block.double()
    x = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    memory = torch.randn(2, 2, 4, dtype=F64, requires_grad=True)
    # Sample 1 has no source word at all.
    mask = padding_mask([2, 0], 2)
    assert torch.autograd.gradcheck(
        lambda x, m: block(x, m, memory_mask=mask)[0], (x, memory)
    )


@pytest.mark.parametrize(
    ("batch", "length"),
    [(0, 3), (2, 0), (2, 1)],
    ids=["no sample", "no word", "one word"],
)
def test_blocks_take_batches_of_any_size(batch, length):
    x = torch.randn(batch, length, 8)
    memory = torch.randn(batch, 2, 8)
    assert EncoderBlock(8, 2)(x)[0].shape == x.shape
    assert DecoderBlock(8, 2, rotary=True)(x, memory)[0].shape == x.shape
    assert DecoderBlock(8, 2)(x, memory[:, :0])[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks_work_in_half_precision(dtype):
    block = DecoderBlock(8, 2, rotary=True)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    expected, _, _ = block(x, memory)
    output, _, _ = block.to(dtype)(x.to(dtype), memory.to(dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.plain
@pytest.mark.parametrize("rotary", [True, False])
def test_blocks_compile_without_a_break(rotary):
    block = DecoderBlock(8, 2, rotary=rotary)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    mask = padding_mask([4, 2], 4)
    torch.testing.assert_close(
        compiled(x, memory, memory_mask=mask)[0],
        block(x, memory, memory_mask=mask)[0],
    )


def test_dropout_acts_in_training_and_not_in_evaluation():
    block = EncoderBlock(8, 2, dropout=0.5)
    x = torch.randn(2, 3, 8)
    assert not torch.equal(block(x)[0], block(x)[0])
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0])


# --- encoder and decoder ---------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_encoder_gives_each_sentence_the_states_it_has_alone(
    kind, norm_first
):
    encoder = TransformerEncoder(
        20, 8, 2, 2, positions=kind, norm_first=norm_first
    ).double()
    source = torch.randint(4, 20, (3, 6))
    lengths = torch.tensor([6, 2, 4])
    memory = encoder(source, lengths)
    assert memory.final is None
    assert torch.equal(memory.mask, padding_mask(lengths, 6))
    for sample, length in enumerate(lengths.tolist()):
        alone = encoder(
            source[sample : sample + 1, :length], lengths[sample : sample + 1]
        )
        torch.testing.assert_close(
            memory.states[sample, :length], alone.states[0]
        )
        assert not memory.states[sample, length:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_word_by_word_and_all_at_once_give_the_same_logits(kind, norm_first):
    decoder = TransformerDecoder(
        20, 8, 2, 2, positions=kind, norm_first=norm_first
    ).double()
    memory = toy_memory(3, 5, 8, [5, 1, 3], dtype=F64)
    target = torch.randint(4, 20, (3, 7))
    at_once = decoder(target, memory)
    state = decoder.start(memory)
    for position in range(7):
        logits, state = decoder.step(target[:, position], state)
        torch.testing.assert_close(logits, at_once[:, position])


@torch.no_grad()
def test_a_step_leaves_the_state_it_started_from_as_it_was():
    decoder = TransformerDecoder(20, 8, 2, 2)
    state = decoder.start(toy_memory(3, 5, 8))
    _, state = decoder.step(torch.tensor([1, 1, 1]), state)
    before = copy.deepcopy(state)
    first, _ = decoder.step(torch.tensor([4, 5, 6]), state)
    decoder.step(torch.tensor([7, 8, 9]), state)
    again, _ = decoder.step(torch.tensor([4, 5, 6]), state)
    assert torch.equal(first, again)
    for old, new in zip(before.layers, state.layers, strict=True):
        assert all(map(torch.equal, old, new))


def test_reordering_a_state_reorders_what_follows():
    decoder = TransformerDecoder(20, 8, 2, 2).double()
    state = decoder.start(toy_memory(3, 5, 8, [5, 1, 3], dtype=F64))
    _, state = decoder.step(torch.tensor([1, 5, 6]), state)
    index = torch.tensor([2, 2, 0, 1])
    tokens = torch.tensor([4, 5, 6])
    expected, _ = decoder.step(tokens, state)
    logits, _ = decoder.step(tokens[index], decoder.reorder(state, index))
    torch.testing.assert_close(logits, expected[index])


def test_the_decoder_sees_no_future_word_and_no_padding_of_the_source():
    decoder = TransformerDecoder(20, 8, 2, 2).double()
    memory = toy_memory(2, 5, 8, [5, 3], dtype=F64)
    target = torch.randint(4, 20, (2, 6))
    assert not future_leak(lambda t: decoder(t, memory), target)
    assert not padding_leak(
        lambda states: decoder(target, memory._replace(states=states)),
        memory.states,
        [5, 3],
        rows="all",
    )


def test_cross_weights_are_those_that_made_the_logits():
    decoder = TransformerDecoder(20, 8, 2, 3).double()
    memory = toy_memory(3, 5, 8, [5, 1, 3], dtype=F64)
    target = torch.randint(4, 20, (3, 7))
    weights = decoder.cross_weights(target, memory)
    assert weights.shape == (3, 3, 2, 7, 5)
    torch.testing.assert_close(
        weights.sum(-1), torch.ones(3, 3, 2, 7, dtype=F64)
    )
    assert not weights.masked_fill(memory.mask[:, None], 0).any()
    states = decoder.embedding(target)
    _, _, first = decoder.blocks[0](
        states, memory.states, memory_mask=memory.mask, need_weights=True
    )
    torch.testing.assert_close(weights[0], first)
    torch.testing.assert_close(
        decoder.attention_weights(target, memory), weights.mean((0, 2))
    )


def test_every_decoder_block_has_its_own_keys_and_values_of_the_memory():
    decoder = TransformerDecoder(20, 8, 2, 2)
    first, second = decoder.start(toy_memory(1, 5, 8)).layers
    assert not torch.allclose(first.memory_key, second.memory_key)


def test_a_pre_norm_stack_ends_in_a_norm_and_a_post_norm_stack_does_not():
    pre = TransformerEncoder(20, 8, 2, 1, norm_first=True)
    post = TransformerEncoder(20, 8, 2, 1, norm_first=False)
    assert isinstance(pre.norm, nn.LayerNorm)
    assert not list(post.norm.parameters())
    for encoder in (pre, post):
        states = encoder(torch.tensor([[5, 6, 7]]), torch.tensor([3])).states
        torch.testing.assert_close(
            states.var(-1, unbiased=False), torch.ones(1, 3), atol=1e-2, rtol=0
        )


@pytest.mark.plain
def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(
        ValueError, match=r"positions must be .*got 'relative'"
    ):
        transformer_model(8, 2, 1, positions="relative")
    with pytest.raises(ValueError, match="dropout must be between 0 and 1"):
        Residual(8, dropout=1.5)
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        LanguageModel(10, 8, 2, 0)
    with pytest.raises(ValueError, match="does not divide d_model=8"):
        transformer_model(8, 3, 1)
    with pytest.raises(ValueError, match="holds 1 caches for 2 blocks"):
        LanguageModel(10, 8, 2, 2)(torch.tensor([[1]]), caches=[ListCache()])


# --- the translator --------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_translator_learns_a_handful_of_sentences(kind):
    pairs = sample_pairs(8)

    def build():
        return transformer_model(32, 2, 1, positions=kind, max_length=40)

    model, log = train_run(
        build, pairs, seed=0, steps=120, batch_size=8, learning_rate=5e-3
    )
    assert log.losses[-1] < 0.3
    if kind != "none":  # without positions the source is a bag of words
        assert evaluate(model, pairs).exact >= 0.75


def test_beams_and_greedy_decoding_go_through_the_cache():
    model = transformer_model(16, 2, 2).eval()
    batch = make_batch(sample_pairs(4))
    greedy = greedy_decode(
        model, batch.source, batch.source_lengths, max_length=6
    )
    beams = beam_search(
        model, batch.source, batch.source_lengths, beam_size=1, max_length=6
    )
    assert [found[0].tokens for found in beams] == greedy
    # The scores of a beam are those of the whole sentence at once.
    found = beam_search(
        model, batch.source, batch.source_lengths, beam_size=3, max_length=6
    )
    for sample, best in enumerate(found):
        memory = model.encoder(
            batch.source[sample : sample + 1],
            batch.source_lengths[sample : sample + 1],
        )
        for hypothesis in best:
            tokens = torch.tensor([[1, *hypothesis.tokens]])
            logits = model.decoder(tokens[:, :-1], memory)
            log_probs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])
            assert log_probs.sum().item() == pytest.approx(
                hypothesis.log_probability, abs=1e-4
            )


def test_the_translator_has_the_vocabularies_of_the_corpus():
    model = transformer_model(8, 2, 1)
    assert model.encoder.embedding.words.num_embeddings == len(ENGLISH)
    assert model.decoder.output.out_features == len(CHINESE)


# --- the language model ----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_language_model_sees_no_future_token(kind):
    model = LanguageModel(20, 8, 2, 2, positions=kind).double()
    tokens = torch.randint(0, 20, (3, 7))
    assert not future_leak(model, tokens)
    assert not batch_leak(model, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_language_model_continues_from_caches(kind):
    model = LanguageModel(20, 8, 2, 2, positions=kind).double()
    tokens = torch.randint(0, 20, (3, 7))
    whole = model(tokens)
    caches = [ListCache() for _ in model.blocks]
    parts = [model(part, caches=caches) for part in tokens.split([3, 1, 3], 1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_the_language_model_takes_a_padding_mask_beside_the_causal_one():
    """A causal mask protects from padding on the right only."""
    model = LanguageModel(20, 8, 2, 2, positions="rotary").double()
    tokens = torch.randint(4, 20, (2, 5))
    padded = torch.cat([torch.randint(4, 20, (2, 3)), tokens], dim=1)
    mask = padding_mask([5, 5], 8, side="left")
    torch.testing.assert_close(model(padded, mask=mask)[:, 3:], model(tokens))


@pytest.mark.plain
def test_a_refused_mask_of_the_memory_leaves_the_caches_as_they_were():
    block = DecoderBlock(8, 2).requires_grad_(False)
    states, memory = torch.randn(1, 2, 8), torch.randn(1, 3, 8)
    caches = {"cache": ListCache(), "memory_cache": ListCache()}
    for mask in (torch.ones(1, 1, 4).bool(), torch.ones(1, 1, 3)):
        with pytest.raises((ValueError, TypeError), match="memory_mask"):
            block(states, memory, memory_mask=mask, **caches)
        assert [cache.length for cache in caches.values()] == [0, 0]


@pytest.mark.plain
def test_each_block_needs_a_cache_of_its_own():
    model = LanguageModel(10, 8, 2, 2).requires_grad_(False)
    tokens = torch.tensor([[1, 2, 3]])
    cache = ListCache()
    for caches in ([cache, cache], [cache, cache, ListCache()]):
        with pytest.raises(ValueError, match="each of which needs its own"):
            model(tokens, caches=caches)
    with pytest.raises(TypeError, match="caches must hold caches with length"):
        model(tokens, caches=[cache, None])
    assert cache.length == 0
