"""Blocks equal to PyTorch's, the translator, the language model."""

import copy
import math
from functools import partial

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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad
from torch.nn import functional as F

from attention_lib import reference
from attention_lib._models import ModelCache
from attention_lib.attention import scaled_dot_product_attention
from attention_lib.course.corpus import (
    CHINESE,
    ENGLISH,
    make_batch,
    sample_pairs,
)
from attention_lib.course.evaluation import evaluate
from attention_lib.course.models import transformer_model
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
from attention_lib.positions import RotaryPositions
from attention_lib.seq2seq import Memory
from attention_lib.transformer import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LanguageModel,
    SwiGLU,
    TransformerDecoder,
    TransformerEncoder,
)

F64 = torch.float64
KINDS = ["sinusoidal", "learned", "rotary", None]
BOTH_NORMS = pytest.mark.parametrize("pre_norm", [True, False])
OLD = {"norm": "layer", "activation": "gelu", "bias": True}
GROUPED = {"num_kv_heads": 1, "tie_embeddings": True, "interleaved": False}


class Cache(ListCache):
    """A plain cache that can forget and be sorted."""

    def crop(self, length):
        self.key, self.value = (
            stored[:, :, :length] for stored in (self.key, self.value)
        )

    def reorder(self, rows):
        self.key, self.value = self.key[rows], self.value[rows]


def caches(model):
    return ModelCache(Cache() for _ in model.blocks)


def encoder_block(d_ff=32, pre_norm=True, dropout=0.0, **options):
    return EncoderBlock(
        MultiHeadAttention(8, 2, **options),
        FeedForward(8, d_ff),
        nn.LayerNorm(8),
        nn.LayerNorm(8),
        pre_norm=pre_norm,
        dropout=dropout,
    )


def decoder_block(pre_norm=True, rotary=None):
    return DecoderBlock(
        MultiHeadAttention(8, 2, rotary=rotary),
        MultiHeadAttention(8, 2),
        FeedForward(8, 32),
        *(nn.LayerNorm(8) for _ in range(3)),
        pre_norm=pre_norm,
    )


def language_model(kind="rotary", **options):
    torch.manual_seed(1)
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 2}
    model = LanguageModel(
        20, **sizes, positions=kind, max_length=40, **options
    )
    return model.double()


def toy_memory(batch, length, width, lengths=None, dtype=F64):
    lengths = [length] * batch if lengths is None else lengths
    states = torch.randn(batch, length, width, dtype=dtype)
    return Memory(states, padding_mask(lengths, length), None)


# --- order -----------------------------------------------------------------


@BOTH_NORMS
@given(seed=st.integers(0, 10**6), length=st.integers(1, 7))
@settings(max_examples=15)
def test_permuting_the_words_permutes_the_states(pre_norm, seed, length):
    block = encoder_block(pre_norm=pre_norm).double()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(length, generator=generator)
    x = torch.randn(2, length, 8, dtype=F64, generator=generator)
    torch.testing.assert_close(block(x[:, order])[0], block(x)[0][:, order])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_and_nothing_else_make_an_encoder_see_order(kind):
    encoder = TransformerEncoder(20, 8, 2, 1, positions=kind, max_length=9)
    tokens, lengths = torch.tensor([[5, 6, 7, 8, 9, 10]]), torch.tensor([6])
    leak = order_leak(lambda t: encoder(t, lengths).states, tokens, moves=True)
    assert bool(leak) == (kind is not None)


def test_a_causal_mask_alone_lets_a_model_see_order():
    block = encoder_block().double()
    x = torch.randn(3, 6, 8, dtype=F64)
    assert not order_leak(block, x, moves=True)
    assert order_leak(partial(block, is_causal=True), x, moves=True)


# --- the parts of a block --------------------------------------------------


@pytest.mark.parametrize("activation", [F.relu, nn.GELU("tanh")])
def test_a_feed_forward_layer_is_its_equation_at_each_position(activation):
    x = torch.randn(2, 5, 6, dtype=F64)
    layer = FeedForward(6, 10, activation=activation).double()
    first, second = layer.input_proj, layer.output_proj
    hidden = activation(x @ first.weight.T + first.bias)
    torch.testing.assert_close(
        layer(x), hidden @ second.weight.T + second.bias
    )
    gated = SwiGLU(6, 10).double()
    gate, first, second = (p.weight.T for p in gated.children())
    hidden = x @ gate * torch.sigmoid(x @ gate) * (x @ first)
    torch.testing.assert_close(gated(x), hidden @ second)


def layer_norm_by_hand(x, norm):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(variance + norm.eps)
    return scaled * norm.weight.numpy() + norm.bias.numpy()


@BOTH_NORMS
def test_an_encoder_block_equals_its_equations_in_numpy(pre_norm):
    block = randomised(encoder_block(10, pre_norm).double())
    block.requires_grad_(False)
    x = np.random.default_rng(0).normal(size=(5, 8))

    def linear(layer, x):
        return x @ layer.weight.numpy().T + layer.bias.numpy()

    def attention(x):
        layer = block.attention
        inputs = (layer.query_proj, layer.key_proj, layer.value_proj)
        heads = [
            reference.attention(*(linear(proj, x)[:, h] for proj in inputs))[0]
            for h in (slice(0, 4), slice(4, 8))
        ]
        return linear(layer.output_proj, np.concatenate(heads, axis=-1))

    def feed_forward(x):
        layer = block.feed_forward
        hidden = np.maximum(linear(layer.input_proj, x), 0)
        return linear(layer.output_proj, hidden)

    expected = x
    for sublayer, norm in (
        (attention, block.norm1),
        (feed_forward, block.norm2),
    ):
        if pre_norm:
            normed = layer_norm_by_hand(expected, norm)
            expected = expected + sublayer(normed)
        else:
            expected = layer_norm_by_hand(expected + sublayer(expected), norm)
    ours, _ = block(torch.from_numpy(x)[None])
    np.testing.assert_allclose(ours[0].numpy(), expected, atol=1e-12)


@BOTH_NORMS
def test_parts_and_options_of_all_kinds_meet_in_a_block(pre_norm):
    """Grouped heads, rotary, another attention, RMS norm, gates, bias."""
    called = []

    def attention(*inputs, **options):
        called.append(options)
        return scaled_dot_product_attention(*inputs, **options)

    layer = MultiHeadAttention(
        12, 3, num_kv_heads=1, rotary=RotaryPositions(4), attention=attention
    )
    gated = SwiGLU(12, 20)
    norms = [nn.RMSNorm(12, 1e-6), nn.RMSNorm(12, 1e-6)]
    block = EncoderBlock(layer, gated, *norms, pre_norm=pre_norm)
    randomised(block.double())
    x = torch.randn(2, 5, 12, dtype=F64)
    options = {
        "mask": padding_mask([5, 3], 5),
        "bias": torch.randn(3, 5, 5, dtype=F64),
        "is_causal": True,
        "positions": torch.arange(5) * 2,
        "need_weights": True,
    }
    states, weights = block(x, **options)
    assert called[0]["bias"] is options["bias"]
    first = norms[0](x) if pre_norm else x
    change, expected = layer(first, **options)
    torch.testing.assert_close(weights, expected)
    if pre_norm:
        middle = x + change
        expected = middle + gated(norms[1](middle))
    else:
        middle = norms[0](x + change)
        expected = norms[1](middle + gated(middle))
    torch.testing.assert_close(states, expected)


def test_dropout_acts_in_training_and_not_in_evaluation():
    x = torch.randn(2, 3, 8)
    block = encoder_block(dropout=0.5)
    assert not torch.equal(block(x)[0], block(x)[0])
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0])
    for model in (
        LanguageModel(20, 8, 2, 1, dropout=0.5),
        LanguageModel(20, 8, 2, 1, dropout=0.5, activation="relu"),
    ):
        rates = {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
        assert rates == {model.blocks[0].attention.dropout} == {0.5}


# --- exchange with PyTorch -------------------------------------------------

PAIRS = pytest.mark.parametrize(
    ("kind", "ours"),
    [
        (nn.TransformerEncoderLayer, EncoderBlock),
        (nn.TransformerDecoderLayer, DecoderBlock),
    ],
)
OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {"norm_first": norm_first, "activation": activation, "bias": bias}
        for norm_first in (True, False)
        for activation in ("relu", "gelu", F.silu)
        for bias in (True, False)
    ],
)


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


@OPTIONS
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


@OPTIONS
@pytest.mark.parametrize("training", [True, False])
def test_a_decoder_block_copies_pytorchs_layer(options, training):
    layer = theirs(nn.TransformerDecoderLayer, training, **options)
    block = DecoderBlock.from_torch(layer)
    assert block.training == training
    inputs = (
        torch.randn(3, 4, 6, dtype=F64, requires_grad=True),
        torch.randn(3, 5, 6, dtype=F64, requires_grad=True),
    )
    mask = padding_mask([5, 2, 4], 5)
    causal = ~causal_mask(4)
    expected = layer(
        *inputs, tgt_mask=causal, memory_key_padding_mask=~mask[:, 0]
    )
    output, _, _ = block(*inputs, memory_mask=mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(
        gradients(output, inputs), gradients(expected, inputs)
    )
    output, _, _ = block(*inputs, is_causal=False)
    torch.testing.assert_close(output, layer(*inputs))


@OPTIONS
@PAIRS
def test_every_parameter_gets_pytorchs_gradient(kind, ours, options):
    layer = theirs(kind, **options)
    block = ours.from_torch(layer)
    x, memory = (
        torch.randn(3, 4, 6, dtype=F64),
        torch.randn(3, 5, 6, dtype=F64),
    )
    if ours is EncoderBlock:
        layer(x).sin().sum().backward()
        block(x)[0].sin().sum().backward()
    else:
        layer(x, memory, tgt_mask=~causal_mask(4)).sin().sum().backward()
        block(x, memory)[0].sin().sum().backward()
    assert_gradients_are_those_of(layer, block)


@OPTIONS
@PAIRS
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_round_trip_is_exact(kind, ours, batch_first, options):
    layer = theirs(kind, False, batch_first, **options)
    state = torch.get_rng_state()
    back = ours.from_torch(layer).to_torch(batch_first=batch_first)
    assert torch.equal(torch.get_rng_state(), state), "a number was drawn"
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


def test_dropout_and_frozen_parameters_survive_the_exchange():
    layer = nn.TransformerEncoderLayer(6, 2, 10, 0.25, batch_first=True)
    layer.linear1.weight.requires_grad_(False)
    layer.dropout.p, layer.self_attn.dropout = 0.5, 0.125
    block = EncoderBlock.from_torch(layer)
    assert block.attention.dropout == 0.125
    assert block.dropout.p == 0.25
    assert block.feed_forward.dropout.p == 0.5
    assert not block.feed_forward.input_proj.weight.requires_grad
    assert block.feed_forward.input_proj.bias.requires_grad
    back = block.to_torch()
    assert (back.dropout.p, back.self_attn.dropout) == (0.5, 0.125)
    assert back.dropout1.p == back.dropout2.p == 0.25
    assert not back.linear1.weight.requires_grad


@pytest.mark.plain
def test_what_cannot_be_exchanged_is_refused_with_a_reason():
    encoder = nn.TransformerEncoderLayer(4, 2)
    decoder = nn.TransformerDecoderLayer(4, 2)
    with pytest.raises(TypeError, match="TransformerEncoderLayer, got Tr"):
        EncoderBlock.from_torch(decoder)
    with pytest.raises(TypeError, match="TransformerDecoderLayer, got Tr"):
        DecoderBlock.from_torch(encoder)
    with pytest.raises(ValueError, match="rotary"):
        decoder_block(rotary=RotaryPositions(4)).to_torch()
    with pytest.raises(ValueError, match="got SwiGLU, RMSNorm"):
        LanguageModel(9, 8, 2, 1).blocks[0].to_torch()
    encoder.dropout2.p = 0.5
    with pytest.raises(ValueError, match=r"different dropout.*0\.1, 0\.5"):
        EncoderBlock.from_torch(encoder)


# --- what blocks let through -----------------------------------------------


@BOTH_NORMS
@pytest.mark.parametrize("rotary", [None, RotaryPositions(4)])
def test_blocks_hide_future_padding_and_other_samples(pre_norm, rotary):
    encoder = randomised(encoder_block(pre_norm=pre_norm, rotary=rotary))
    decoder = randomised(decoder_block(pre_norm, rotary))
    encoder.double(), decoder.double()
    x = torch.randn(3, 5, 8, dtype=F64)
    memory = torch.randn(3, 6, 8, dtype=F64)
    lengths = [5, 2, 3]
    mask = padding_mask(lengths, 5)
    assert not future_leak(lambda x: encoder(x, is_causal=True), x)
    assert not padding_leak(lambda x: encoder(x, mask=mask), x, lengths)
    assert not batch_leak(lambda x: encoder(x, mask=mask), x)
    assert not future_leak(lambda x: decoder(x, memory), x)
    assert not padding_leak(
        lambda m: decoder(memory, m, memory_mask=mask), x, lengths, rows="all"
    )
    assert not order_leak(lambda m: decoder(x, m), memory)
    # and the detectors would have noticed
    assert future_leak(encoder, x)
    assert future_leak(lambda x: decoder(x, memory, is_causal=False), x)
    assert padding_leak(encoder, x, lengths)


def test_weights_are_those_of_the_attentions_and_change_no_output():
    block = decoder_block().double()
    x = torch.randn(3, 4, 8, dtype=F64)
    memory = torch.randn(3, 6, 8, dtype=F64)
    states, own, cross = block(x, memory, need_weights=True)
    torch.testing.assert_close(block(x, memory)[0], states)
    assert block(x, memory)[1:] == (None, None)
    assert own.shape == (3, 2, 4, 4)
    assert cross.shape == (3, 2, 4, 6)
    assert own.triu(1).abs().max() == 0
    torch.testing.assert_close(cross.sum(-1), torch.ones(3, 2, 4, dtype=F64))


def test_a_decoder_block_fills_the_cache_of_its_memory_once():
    block = decoder_block(rotary=RotaryPositions(4)).double()
    x, memory = (
        torch.randn(3, 5, 8, dtype=F64),
        torch.randn(3, 6, 8, dtype=F64),
    )
    mask = padding_mask([6, 2, 3], 6)
    expected, _, _ = block(x, memory, memory_mask=mask)
    kept = {"cache": ListCache(), "memory_cache": ListCache()}
    parts = []
    for part in x.split([2, 1, 2], 1):
        new = memory[:, kept["memory_cache"].length :]
        parts.append(block(part, new, memory_mask=mask, **kept)[0])
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    with pytest.raises(ValueError, match="filled cache"):
        block(x, memory, memory_mask=mask, **kept)
    assert [cache.length for cache in kept.values()] == [5, 6]


@pytest.mark.plain
def test_a_refused_memory_leaves_the_caches_as_they_were():
    block = decoder_block().requires_grad_(False)
    states, memory = torch.randn(1, 2, 8), torch.randn(1, 3, 8)
    kept = {"cache": ListCache(), "memory_cache": ListCache()}
    for mask in (torch.ones(1, 1, 4).bool(), torch.ones(1, 1, 3)):
        with pytest.raises((ValueError, TypeError), match="memory_mask"):
            block(states, memory, memory_mask=mask, **kept)
    for wrong in (memory[..., :4], memory[0], memory.expand(2, -1, -1)):
        with pytest.raises(ValueError, match="got quer"):
            block(states, wrong, **kept)
    with pytest.raises(TypeError, match="one type"):
        block(states, memory.double(), **kept)
    assert [cache.length for cache in kept.values()] == [0, 0]


@BOTH_NORMS
def test_gradients_of_blocks_are_those_of_finite_differences(pre_norm):
    block = decoder_block(pre_norm, RotaryPositions(4)).double()
    x = torch.randn(2, 3, 8, dtype=F64, requires_grad=True)
    memory = torch.randn(2, 2, 8, dtype=F64, requires_grad=True)
    # Sample 1 has no source word at all.
    mask = padding_mask([2, 0], 2)
    assert torch.autograd.gradcheck(
        lambda x, m: block(x, m, memory_mask=mask)[0],
        (x, memory),
        fast_mode=True,
    )


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (2, 1)])
def test_blocks_and_models_take_batches_of_any_size(batch, length):
    x, memory = torch.randn(batch, length, 8), torch.randn(batch, 2, 8)
    assert encoder_block()(x)[0].shape == x.shape
    assert decoder_block()(x, memory)[0].shape == x.shape
    assert decoder_block()(x, memory[:, :0])[0].isfinite().all()
    tokens = torch.zeros(batch, length, dtype=torch.long)
    mask = padding_mask([length] * batch, length)
    for kind in KINDS:
        logits = LanguageModel(20, 8, 2, 1, positions=kind, max_length=9)(
            tokens, mask=mask
        )
        assert logits.shape == (batch, length, 20)
        model = transformer_model(8, 2, 1, positions=kind)
        lengths = torch.zeros(batch, dtype=torch.long)
        assert model(tokens, lengths, tokens).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks_and_models_work_in_half_precision(dtype):
    block = decoder_block(rotary=RotaryPositions(4))
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    expected, _, _ = block(x, memory)
    output, _, _ = block.to(dtype)(x.to(dtype), memory.to(dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.05)
    model, tokens = LanguageModel(20, 8, 2, 2), torch.arange(12).view(2, 6)
    expected = model(tokens)
    logits = model.to(dtype)(tokens)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.plain
def test_blocks_and_models_compile_without_a_break():
    compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    mask = padding_mask([4, 2], 4)
    block = decoder_block(rotary=RotaryPositions(4))
    torch.testing.assert_close(
        compiled(block)(x, memory, memory_mask=mask)[0],
        block(x, memory, memory_mask=mask)[0],
    )
    tokens, mask = torch.randint(0, 20, (2, 4)), padding_mask([4, 2], 4)
    for kind in KINDS:
        model = language_model(kind, num_kv_heads=1)
        torch.testing.assert_close(
            compiled(model)(tokens, mask=mask), model(tokens, mask=mask)
        )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", KINDS)
def test_models_are_mapped_and_give_a_gradient_for_each_sample(kind):
    model = language_model(kind)
    tokens, mask = torch.randint(0, 20, (3, 5)), padding_mask([5, 2, 3], 5)
    logits = model(tokens, mask=mask)

    def alone(parameters, tokens, mask):
        inputs = (tokens[None],)
        options = {"mask": mask[None]}
        return functional_call(model, parameters, inputs, options)[0]

    parameters = dict(model.named_parameters())
    each = (None, 0, 0)
    mapped = torch.vmap(alone, each)(parameters, tokens, mask)
    torch.testing.assert_close(mapped, logits)
    found = torch.vmap(grad(lambda *a: alone(*a).sin().sum()), each)(
        parameters, tokens, mask
    )
    expected = torch.autograd.grad(
        logits[1].sin().sum(), list(parameters.values())
    )
    for gradient, one in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(gradient[1], one)


@pytest.mark.plain
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_found_without_numbers(kind):
    tokens, mask = torch.ones(2, 5).long(), torch.ones(2, 1, 5).bool()
    lengths = torch.tensor([5, 2])
    nowhere = language_model(kind).to("meta")
    logits = nowhere(tokens.to("meta"), mask=mask.to("meta"))
    assert logits.shape == (2, 5, 20)
    with FakeTensorMode() as mode:
        model = LanguageModel(20, 8, 2, 2, positions=kind, max_length=9)
        fake = [mode.from_tensor(tensor) for tensor in (tokens, mask, lengths)]
        assert model(fake[0], mask=fake[1]).shape == (2, 5, 20)
        translator = transformer_model(8, 2, 1, positions=kind)
        assert translator(fake[0], fake[2], fake[0]).shape[:2] == (2, 5)


# --- encoder and decoder ---------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@BOTH_NORMS
def test_the_encoder_gives_each_sentence_the_states_it_has_alone(
    kind, pre_norm
):
    encoder = transformer_model(
        8, 2, 2, positions=kind, pre_norm=pre_norm
    ).encoder.double()
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
@BOTH_NORMS
def test_word_by_word_and_all_at_once_give_the_same_logits(kind, pre_norm):
    decoder = transformer_model(
        8, 2, 2, positions=kind, pre_norm=pre_norm
    ).decoder.double()
    memory = toy_memory(3, 5, 8, [5, 1, 3])
    target = torch.randint(4, 20, (3, 7))
    at_once = decoder(target, memory)
    state = decoder.start(memory)
    for position in range(7):
        logits, state = decoder.step(target[:, position], state)
        torch.testing.assert_close(logits, at_once[:, position])


@torch.no_grad()
def test_a_step_leaves_the_state_it_started_from_as_it_was():
    decoder = TransformerDecoder(20, 8, 2, 2)
    state = decoder.start(toy_memory(3, 5, 8, dtype=torch.float32))
    _, state = decoder.step(torch.tensor([1, 1, 1]), state)
    before = copy.deepcopy(state)
    first, _ = decoder.step(torch.tensor([4, 5, 6]), state)
    decoder.step(torch.tensor([7, 8, 9]), state)
    again, _ = decoder.step(torch.tensor([4, 5, 6]), state)
    assert torch.equal(first, again)
    for old, new in zip(before[1:], state[1:], strict=True):
        for pair, same in zip(old, new, strict=True):
            assert all(map(torch.equal, pair, same))


def test_reordering_a_state_reorders_what_follows():
    decoder = TransformerDecoder(20, 8, 2, 2).double()
    state = decoder.start(toy_memory(3, 5, 8, [5, 1, 3]))
    index = torch.tensor([2, 2, 0, 1])
    for tokens in torch.tensor([[1, 5, 6], [4, 5, 6]]):
        expected, following = decoder.step(tokens, state)
        moved = decoder.reorder(state, index)
        logits, _ = decoder.step(tokens[index], moved)
        torch.testing.assert_close(logits, expected[index])
        state = following


def test_the_decoder_sees_no_future_word_and_no_padding_of_the_source():
    decoder = TransformerDecoder(20, 8, 2, 2).double()
    memory = toy_memory(2, 5, 8, [5, 3])
    target = torch.randint(4, 20, (2, 6))
    assert not future_leak(lambda t: decoder(t, memory), target)
    assert not padding_leak(
        lambda states: decoder(target, memory._replace(states=states)),
        memory.states,
        [5, 3],
        rows="all",
    )


def test_cross_weights_are_those_that_made_the_logits():
    decoder = TransformerDecoder(20, 8, 2, 3, positions="sinusoidal").double()
    memory = toy_memory(3, 5, 8, [5, 1, 3])
    target = torch.randint(4, 20, (3, 7))
    weights = decoder.cross_weights(target, memory)
    assert weights.shape == (3, 3, 2, 7, 5)
    torch.testing.assert_close(
        weights.sum(-1), torch.ones(3, 3, 2, 7, dtype=F64)
    )
    assert not weights.masked_fill(memory.mask[:, None], 0).any()
    _, _, first = decoder.blocks[0](
        decoder.embed(target),
        memory.states,
        memory_mask=memory.mask,
        need_weights=True,
    )
    torch.testing.assert_close(weights[0], first)
    torch.testing.assert_close(
        decoder.attention_weights(target, memory), weights.mean((0, 2))
    )


def test_a_pre_norm_stack_ends_in_a_norm_and_a_post_norm_stack_does_not():
    pre, post = (transformer_model(8, 2, 1, pre_norm=p) for p in (True, False))
    assert isinstance(pre.encoder.norm, nn.LayerNorm)
    assert not list(post.encoder.norm.parameters())
    for model in (pre, post):
        states = model.encoder(
            torch.tensor([[5, 6]]), torch.tensor([2])
        ).states
        torch.testing.assert_close(
            states.var(-1, unbiased=False), torch.ones(1, 2), atol=1e-2, rtol=0
        )


# --- the translator --------------------------------------------------------


def test_the_translator_is_that_of_2017_unless_told_otherwise():
    model = transformer_model()
    assert model.encoder.embedding.num_embeddings == len(ENGLISH)
    assert model.decoder.output.out_features == len(CHINESE)
    for stack in (model.encoder, model.decoder):
        assert len(stack.blocks) == 2
        for block in stack.blocks:
            assert block.pre_norm
            assert block.feed_forward.input_proj.out_features == 256
            assert block.feed_forward.activation is F.relu
            assert type(block.norm1) is nn.LayerNorm
    modern = transformer_model(
        8, 2, 1, positions="rotary", activation="swiglu"
    )
    assert isinstance(modern.decoder.blocks[0].feed_forward, SwiGLU)
    assert modern.decoder.blocks[0].cross_attention.rotary is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_translator_learns_a_handful_of_sentences(kind):
    pairs = sample_pairs(8)
    model, log = train_run(
        partial(transformer_model, 32, 2, 1, positions=kind, max_length=40),
        pairs,
        seed=0,
        steps=120,
        batch_size=8,
        learning_rate=5e-3,
    )
    assert log.losses[-1] < 0.3
    if kind is not None:  # without positions the source is a bag of words
        assert evaluate(model, pairs).exact >= 0.75


def test_beams_and_greedy_decoding_go_through_the_cache():
    model = transformer_model(16, 2, 2).eval()
    batch = make_batch(sample_pairs(4))
    source = (batch.source, batch.source_lengths)
    greedy = greedy_decode(model, *source, max_length=6)
    beams = beam_search(model, *source, beam_size=1, max_length=6)
    assert [found[0].tokens for found in beams] == greedy
    # The scores of a beam are those of the whole sentence at once.
    found = beam_search(model, *source, beam_size=3, max_length=6)
    for sample, best in enumerate(found):
        memory = model.encoder(*(part[sample : sample + 1] for part in source))
        for hypothesis in best:
            tokens = torch.tensor([[1, *hypothesis.tokens]])
            logits = model.decoder(tokens[:, :-1], memory)
            log_probs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])
            assert log_probs.sum().item() == pytest.approx(
                hypothesis.log_probability, abs=1e-4
            )


# --- the language model ----------------------------------------------------

MODELS = pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind in KINDS for options in (OLD, GROUPED)],
)


@MODELS
def test_the_language_model_sees_no_future_token(kind, options):
    model = language_model(kind, **options)
    tokens = torch.randint(0, 20, (3, 7))
    assert not future_leak(model, tokens)
    assert not batch_leak(model, tokens)


def rms_by_hand(x, norm):
    scale = (x.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt()
    return x * scale * norm.weight


def test_the_modern_model_is_a_llama_written_by_hand():
    """Grouped heads of their own width, RMS norms, gates, half-split pairs."""
    model = LanguageModel(
        20,
        12,
        3,
        2,
        num_kv_heads=1,
        d_head=6,
        d_ff=10,
        tie_embeddings=True,
        rotary_base=500.0,
        interleaved=False,
        norm_eps=1e-3,
    )
    randomised(model.double())
    tokens = torch.randint(0, 20, (2, 5))
    frequencies = 500.0 ** (-torch.arange(0, 6, 2, dtype=F64) / 6)
    angles = (torch.arange(5)[:, None] * frequencies).repeat(1, 2)

    def turn(heads):
        first, second = heads.chunk(2, -1)
        halves = torch.cat([-second, first], -1)
        return heads * angles.cos() + halves * angles.sin()

    x = model.embedding.weight[tokens]
    for block in model.blocks:
        layer, gates = block.attention, block.feed_forward
        normed = rms_by_hand(x, block.norm1)
        query = normed @ layer.query_proj.weight.T
        query = turn(query.view(2, 5, 3, 6).transpose(1, 2))
        key = turn((normed @ layer.key_proj.weight.T)[:, None])
        value = (normed @ layer.value_proj.weight.T)[:, None]
        scores = query @ key.mT / math.sqrt(6)
        scores = scores.masked_fill(
            torch.ones(5, 5).triu(1).bool(), -torch.inf
        )
        heads = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + heads @ layer.output_proj.weight.T
        normed = rms_by_hand(x, block.norm2)
        hidden = F.silu(normed @ gates.gate_proj.weight.T)
        hidden = hidden * (normed @ gates.input_proj.weight.T)
        x = x + hidden @ gates.output_proj.weight.T
    expected = rms_by_hand(x, model.norm) @ model.embedding.weight.T
    torch.testing.assert_close(model(tokens), expected)
    assert model.output.weight is model.embedding.weight
    assert not any("bias" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("options", [{}, OLD])
def test_an_untrained_model_knows_nothing_tied_or_not(options):
    tokens = torch.randint(0, 500, (4, 33))
    for tied in (True, False):
        model = LanguageModel(500, 32, 4, 2, tie_embeddings=tied, **options)
        logits = model(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten()).item()
        assert abs(loss - math.log(500)) < 0.8


@MODELS
@given(
    chunks=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    lengths=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    padded=st.booleans(),
)
@settings(max_examples=15)
def test_any_chunks_give_each_row_what_it_has_alone(
    kind, options, chunks, lengths, padded
):
    """Caches, padding on the left, and grouped heads, at once."""
    model, total = language_model(kind, **options), max(lengths)
    tokens = torch.randint(0, 20, (3, total))
    mask = padding_mask(lengths, total, side="left") if padded else None
    sizes = [size for size in chunks if size <= total - sum(chunks)]
    sizes.append(total - sum(sizes))
    cache, parts = caches(model), []
    for part in tokens.split(sizes, 1):
        end = cache.length + part.shape[1]
        seen = None if mask is None else mask[..., :end]
        parts.append(model(part, mask=seen, cache=cache))
    logits = torch.cat(parts, 1)
    torch.testing.assert_close(logits, model(tokens, mask=mask))
    for row, length in enumerate(lengths if padded else [total] * 3):
        alone = model(tokens[row : row + 1, total - length :])
        torch.testing.assert_close(logits[row, total - length :], alone[0])


@MODELS
def test_packed_documents_are_each_as_if_alone(kind, options):
    model = language_model(kind, **options)
    tokens, sizes = torch.randint(0, 20, (2, 9)), [4, 3, 2]
    mask = torch.block_diag(*(torch.ones(n, n) for n in sizes)).bool()
    positions = torch.cat([torch.arange(n) for n in sizes])
    packed = model(tokens, mask=mask, positions=positions)
    alone = [model(document) for document in tokens.split(sizes, 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    cache, parts = caches(model), []
    for start, end in ((0, 5), (5, 6), (6, 9)):
        parts.append(
            model(
                tokens[:, start:end],
                mask=mask[start:end, :end],
                positions=positions[start:end].expand(2, -1),
                cache=cache,
            )
        )
    torch.testing.assert_close(torch.cat(parts, 1), packed)


@MODELS
def test_a_model_can_return_the_weights_of_its_blocks(kind, options):
    model = language_model(kind, **options)
    tokens, mask = torch.randint(0, 20, (3, 5)), padding_mask([5, 3, 4], 5)
    logits, weights = model(tokens, mask=mask, need_weights=True)
    torch.testing.assert_close(logits, model(tokens, mask=mask))
    assert [w.shape for w in weights] == [(3, 2, 5, 5)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(3, 2, 5, dtype=F64))
        assert not w.masked_fill((mask & causal_mask(5))[:, None], 0).any()


def test_a_cache_can_be_cut_and_sorted():
    model = language_model()
    tokens, rows = torch.randint(0, 20, (3, 7)), torch.tensor([2, 0, 0])
    cache = caches(model)
    model(tokens, cache=cache)
    cache.crop(4)
    assert cache.length == 4
    cache.reorder(rows)
    torch.testing.assert_close(
        model(tokens[rows, 4:], cache=cache), model(tokens[rows])[:, 4:]
    )


@pytest.mark.plain
def test_caches_that_do_not_belong_together_are_refused():
    model = language_model()
    tokens = torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match="each block needs its own"):
        ModelCache([Cache()] * 2)
    with pytest.raises(ValueError, match="holds 1 caches for 2 blocks"):
        model(tokens, cache=ModelCache([Cache()]))
    for wrong in (Cache(), [Cache(), Cache()]):
        with pytest.raises(TypeError, match=r"made by new_cache\(\)"):
            model(tokens, cache=wrong)
    cache = caches(model)
    model(tokens, cache=cache)
    cache.caches[1].crop(2)
    with pytest.raises(ValueError, match=r"equally many positions.*\[3, 2\]"):
        model(tokens, cache=cache)


@pytest.mark.plain
def test_a_call_that_is_refused_or_interrupted_changes_no_cache():
    model = language_model("learned")
    tokens = torch.tensor([[1, 2, 3]])
    cache = caches(model)
    model(tokens, cache=cache)
    for options in (
        {"mask": torch.ones(1, 1, 3).bool()},
        {"mask": torch.ones(1, 1, 6)},
        {"positions": torch.tensor([1, 2])},
        {"positions": torch.tensor([38, 39, 40])},
    ):
        with pytest.raises((ValueError, TypeError)):
            model(tokens, cache=cache, **options)
        assert cache.length == 3

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.blocks[1].norm2.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(tokens, cache=cache)
    hook.remove()
    assert [one.length for one in cache.caches] == [3, 3]
    rest = model(tokens, cache=cache)
    torch.testing.assert_close(rest, model(tokens.repeat(1, 2))[:, 3:])


@pytest.mark.plain
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"positions": "relative"}, "positions must be one of.*'relative'"),
        ({"positions": "learned"}, "need a max_length"),
        ({"norm": "batch"}, "norm must be one of .'rms', 'layer'"),
        ({"activation": "silu"}, "activation must be one of .'swiglu'"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"num_heads": 3}, "does not divide d_model=8"),
        ({"d_head": 3}, "d_head must be even"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, word):
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 2}
    with pytest.raises(ValueError, match=word):
        LanguageModel(9, **sizes | options)


@pytest.mark.plain
def test_tokens_are_numbers_in_a_batch():
    model = language_model()
    with pytest.raises(ValueError, match=r"tokens must have shape \(B, T\)"):
        model(torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="tokens must hold whole numbers"):
        model(torch.zeros(1, 2))
    with pytest.raises(
        ValueError, match="positions must be those of the 2 keys"
    ):
        model(torch.zeros(1, 2).long(), positions=torch.arange(3))
