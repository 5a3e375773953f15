"""Blocks equal to PyTorch's, the translator, the language model."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import (
    ListCache,
    assert_gradients_are_those_of,
    randomised,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad
from torch.nn import functional as F

from attention_lib.attention import scaled_dot_product_attention
from attention_lib.course.corpus import (
    CHINESE,
    ENGLISH,
    sample_pairs,
)
from attention_lib.course.evaluation import evaluate
from attention_lib.course.models import transformer_model
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


def encoder_block(pre_norm=True, dropout=0.0, **options):
    parts = MultiHeadAttention(8, 2, **options), FeedForward(8, 32)
    norms = nn.LayerNorm(8), nn.LayerNorm(8)
    return EncoderBlock(*parts, *norms, pre_norm=pre_norm, dropout=dropout)


def decoder_block(pre_norm=True, rotary=None):
    own = MultiHeadAttention(8, 2, rotary=rotary)
    parts = own, MultiHeadAttention(8, 2), FeedForward(8, 32)
    norms = [nn.LayerNorm(8) for _ in range(3)]
    return DecoderBlock(*parts, *norms, pre_norm=pre_norm)


def language_model(kind="rotary", **options):
    torch.manual_seed(1)
    options = {"positions": kind, "max_length": 40, **options}
    return LanguageModel(20, 8, 2, 2, **options).double()


def tripled(*inputs, **options):
    """Another attention: contexts are three times as large."""
    context, weights = scaled_dot_product_attention(*inputs, **options)
    return 3 * context, weights


def toy_memory(lengths, length=5):
    states = torch.randn(len(lengths), length, 8, dtype=F64)
    return Memory(states, padding_mask(lengths, length), None)


# --- order -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_positions_and_nothing_else_make_an_encoder_see_order(kind):
    encoder = TransformerEncoder(20, 8, 2, 1, positions=kind, max_length=9)
    tokens, lengths = torch.tensor([[5, 6, 7, 8, 9, 10]]), torch.tensor([6])
    leak = order_leak(lambda t: encoder(t, lengths).states, tokens, moves=True)
    assert bool(leak) == (kind is not None)


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


@BOTH_NORMS
def test_parts_and_options_of_all_kinds_meet_in_a_block(pre_norm):
    """Grouped heads, rotary, another attention, RMS norm, gates, bias."""
    shared = {"num_kv_heads": 1, "rotary": RotaryPositions(4)}
    layer = MultiHeadAttention(12, 3, attention=tripled, **shared)
    gated, norms = SwiGLU(12, 20), [nn.RMSNorm(12, 1e-6) for _ in range(2)]
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
    change, weights = layer(norms[0](x) if pre_norm else x, **options)
    if pre_norm:
        middle = x + change
        expected = middle + gated(norms[1](middle))
    else:
        middle = norms[0](x + change)
        expected = norms[1](middle + gated(middle))
    torch.testing.assert_close(block(x, **options), (expected, weights))


def test_dropout_acts_in_training_and_not_in_evaluation():
    x, block = torch.randn(2, 3, 8), encoder_block(dropout=0.5)
    assert not torch.equal(block(x)[0], block(x)[0])
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0])
    model = LanguageModel(20, 8, 2, 1, dropout=0.5, activation="relu")
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
    options |= {"dropout": 0.0, "layer_norm_eps": 1e-3, "dtype": F64}
    layer = kind(6, 2, 10, batch_first=batch_first, **options)
    return randomised(layer).train(training)


@OPTIONS
@PAIRS
@pytest.mark.parametrize("training", [True, False])
def test_a_block_copies_pytorchs_layer_and_its_gradients(
    kind, ours, training, options
):
    layer = theirs(kind, training, **options)
    block = ours.from_torch(layer)
    assert block.training == training
    x, memory = torch.randn(2, 3, 4, 6, dtype=F64)
    causal, mask = ~causal_mask(4), padding_mask([4, 2, 3], 4)
    if ours is EncoderBlock:
        expected = layer(x, src_mask=causal)
        output, _ = block(x, is_causal=True)
    else:
        hidden = {"memory_key_padding_mask": ~mask[:, 0]}
        expected = layer(x, memory, tgt_mask=causal, **hidden)
        output, _, _ = block(x, memory, memory_mask=mask)
    torch.testing.assert_close(output, expected)
    output.sin().sum().backward()
    expected.sin().sum().backward()
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
    rates = block.attention.dropout, block.dropout.p
    assert (*rates, block.feed_forward.dropout.p) == (0.125, 0.25, 0.5)
    back = block.to_torch()
    assert (back.dropout.p, back.self_attn.dropout) == (0.5, 0.125)
    assert back.dropout1.p == back.dropout2.p == 0.25
    for linear in (block.feed_forward.input_proj, back.linear1):
        assert not linear.weight.requires_grad
        assert linear.bias.requires_grad


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


def test_a_decoder_block_fills_the_cache_of_its_memory_once():
    block = decoder_block(rotary=RotaryPositions(4)).double()
    x, memory = torch.randn(2, 3, 5, 8, dtype=F64)
    options = {"memory_mask": padding_mask([5, 2, 3], 5)}
    expected, _, _ = block(x, memory, **options)
    kept = {"cache": ListCache(), "memory_cache": ListCache()}
    parts = []
    for part in x.split([2, 1, 2], 1):
        new = memory[:, kept["memory_cache"].length :]
        parts.append(block(part, new, **options, **kept)[0])
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    with pytest.raises(ValueError, match="filled cache"):
        block(x, memory, **options, **kept)
    assert [cache.length for cache in kept.values()] == [5, 5]


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
    run = partial(block, memory_mask=mask)
    inputs, options = (x, memory), {"fast_mode": True}
    assert torch.autograd.gradcheck(lambda *i: run(*i)[0], inputs, **options)


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (2, 1)])
def test_blocks_and_models_take_batches_of_any_size(batch, length):
    x, memory = torch.randn(batch, length, 8), torch.randn(batch, 2, 8)
    assert encoder_block()(x)[0].shape == x.shape
    assert decoder_block()(x, memory)[0].shape == x.shape
    assert decoder_block()(x, memory[:, :0])[0].isfinite().all()
    tokens = torch.zeros(batch, length, dtype=torch.long)
    mask = padding_mask([length] * batch, length)
    for kind in KINDS:
        logits = language_model(kind)(tokens, mask=mask)
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

    def loss(parameters, tokens, mask):
        options = {"mask": mask[None]}
        output = functional_call(model, parameters, tokens[None], options)[0]
        return output.sin().sum(), output

    parameters = dict(model.named_parameters())
    mapped = torch.vmap(grad(loss, has_aux=True), (None, 0, 0))
    found, outputs = mapped(parameters, tokens, mask)
    torch.testing.assert_close(outputs, logits)
    logits[1].sin().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name][1], parameter.grad)


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


@BOTH_NORMS
@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_gives_each_sentence_the_states_it_has_alone(
    kind, pre_norm
):
    model = transformer_model(8, 2, 2, positions=kind, pre_norm=pre_norm)
    encoder = model.encoder.double()
    source, lengths = torch.randint(4, 20, (3, 6)), torch.tensor([6, 2, 4])
    memory = encoder(source, lengths)
    assert torch.equal(memory.mask, padding_mask(lengths, 6))
    for row, length in enumerate(lengths.tolist()):
        alone = encoder(source[row : row + 1, :length], lengths[row : row + 1])
        states = memory.states[row]
        torch.testing.assert_close(states[:length], alone.states[0])
        assert not states[length:].any()


@BOTH_NORMS
@pytest.mark.parametrize("kind", KINDS)
def test_word_by_word_and_all_at_once_give_the_same_logits(kind, pre_norm):
    model = transformer_model(8, 2, 2, positions=kind, pre_norm=pre_norm)
    decoder, memory = model.decoder.double(), toy_memory([5, 1, 3])
    target, index = torch.randint(4, 20, (3, 7)), torch.tensor([2, 2, 0, 1])
    at_once, state = decoder(target, memory), decoder.start(memory)
    for words, expected in zip(target.T, at_once.unbind(1), strict=True):
        moved = decoder.reorder(state, index)  # and the old one stays
        logits, _ = decoder.step(words[index], moved)
        torch.testing.assert_close(logits, expected[index])
        logits, following = decoder.step(words, state)
        decoder.step(words + 1, state)
        torch.testing.assert_close(logits, expected)
        state = following


def test_cross_weights_are_those_of_the_blocks():
    decoder = TransformerDecoder(20, 8, 2, 3, positions="sinusoidal").double()
    memory, target = toy_memory([5, 1, 3]), torch.randint(4, 20, (3, 7))
    weights = decoder.cross_weights(target, memory)
    sums = torch.ones(3, 3, 2, 7, dtype=F64)
    torch.testing.assert_close(weights.sum(-1), sums)
    assert not weights.masked_fill(memory.mask[:, None], 0).any()
    options = {"memory_mask": memory.mask, "need_weights": True}
    x = decoder.embed(target)
    _, own, first = decoder.blocks[0](x, memory.states, **options)
    assert own.shape == (3, 2, 7, 7)
    torch.testing.assert_close(weights[0], first)
    mean = decoder.attention_weights(target, memory)
    torch.testing.assert_close(mean, weights.mean((0, 2)))


# --- the translator --------------------------------------------------------


def test_the_translator_is_that_of_2017_unless_told_otherwise():
    model = transformer_model(8, 2, 1)
    assert model.encoder.embedding.num_embeddings == len(ENGLISH)
    assert model.decoder.output.out_features == len(CHINESE)
    (block,) = model.decoder.blocks
    assert block.pre_norm
    assert block.feed_forward.activation is F.relu
    assert type(block.norm1) is type(model.encoder.norm) is nn.LayerNorm
    options = {"positions": "rotary", "activation": "swiglu"}
    modern = transformer_model(8, 2, 1, **options, pre_norm=False)
    assert isinstance(modern.decoder.blocks[0].feed_forward, SwiGLU)
    assert modern.decoder.blocks[0].cross_attention.rotary is None
    assert type(modern.encoder.norm) is nn.Identity


@pytest.mark.parametrize("kind", KINDS)
def test_the_translator_learns_a_handful_of_sentences(kind):
    pairs, build = sample_pairs(8), partial(transformer_model, 32, 2, 1)
    budget = {"steps": 120, "batch_size": 8, "learning_rate": 5e-3}
    model, log = train_run(
        partial(build, positions=kind, max_length=40), pairs, seed=0, **budget
    )
    assert log.losses[-1] < 0.3
    if kind is not None:  # without positions the source is a bag of words
        assert evaluate(model, pairs).exact >= 0.75


# --- the language model ----------------------------------------------------

MODELS = pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind in KINDS for options in (OLD, GROUPED)],
)


def rms_by_hand(x, norm):
    scale = (x.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt()
    return x * scale * norm.weight


def test_the_modern_model_is_a_llama_written_by_hand():
    """Grouped heads of their own width, RMS norms, gates, half-split pairs."""
    options = {"num_kv_heads": 1, "d_head": 6, "d_ff": 10, "norm_eps": 1e-3}
    options |= {"rotary_base": 500.0, "interleaved": False}
    model = LanguageModel(20, 12, 3, 2, tie_embeddings=True, **options)
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
        scores = scores.masked_fill(~causal_mask(5), -torch.inf)
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
    cuts=st.lists(st.integers(0, 6), max_size=4),
    lengths=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    padded=st.booleans(),
)
@settings(max_examples=15)
def test_any_chunks_give_each_row_what_it_has_alone(
    kind, options, cuts, lengths, padded
):
    """Caches, padding on the left, and grouped heads, at once."""
    model, total = language_model(kind, **options), max(lengths)
    tokens = torch.randint(0, 20, (3, total))
    mask = padding_mask(lengths, total, side="left") if padded else None
    cuts = [0, *sorted(min(cut, total) for cut in cuts), total]
    cache, parts = model.requires_grad_(False).new_cache(), []
    for start, end in pairwise(cuts):
        seen = None if mask is None else mask[..., :end]
        parts.append(model(tokens[:, start:end], mask=seen, cache=cache))
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
    positions = torch.cat([torch.arange(n) for n in sizes]).expand(2, -1)
    packed = model(tokens, mask=mask, positions=positions[0])
    stretched = model(tokens, mask=mask, positions=2 * positions)
    assert torch.allclose(stretched, packed) == (kind is None)
    alone = [model(document) for document in tokens.split(sizes, 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    cache, parts = model.requires_grad_(False).new_cache(), []
    for start, end in ((0, 5), (5, 6), (6, 9)):
        here = {"positions": positions[:, start:end], "cache": cache}
        seen = mask[start:end, :end]
        parts.append(model(tokens[:, start:end], mask=seen, **here))
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


@pytest.mark.plain
def test_a_cache_can_be_cut_and_sorted():
    model = language_model()
    tokens, rows = torch.randint(0, 20, (3, 7)), torch.tensor([2, 0, 0])
    cache = model.requires_grad_(False).new_cache()
    model(tokens, cache=cache)
    cache.crop(4)
    assert cache.length == 4
    cache.reorder(rows)
    torch.testing.assert_close(
        model(tokens[rows, 4:], cache=cache), model(tokens[rows])[:, 4:]
    )


@pytest.mark.plain
def test_caches_of_different_lengths_are_refused():
    model, tokens = language_model(), torch.tensor([[1, 2, 3]])
    cache = model.requires_grad_(False).new_cache()
    model(tokens, cache=cache)
    cache.caches[1].crop(2)
    with pytest.raises(ValueError, match=r"equally many positions.*\[3, 2\]"):
        model(tokens, cache=cache)


@pytest.mark.plain
def test_a_call_that_is_refused_or_interrupted_changes_no_cache():
    model = language_model("learned")
    tokens = torch.tensor([[1, 2, 3]])
    cache = model.requires_grad_(False).new_cache()
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
