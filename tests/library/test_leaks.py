"""Detectors find the faults that they are for, and only those."""

import copy
import math
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attention_lib.interop import to_key_padding_mask, to_mha_mask
from attention_lib.leaks import (
    LeakReport,
    batch_leak,
    future_leak,
    influence,
    missing,
    order_leak,
    padding_leak,
    step_leak,
)
from attention_lib.masks import causal_mask, padding_mask

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LENGTHS = [2, 5, 3]
CAUSAL = to_mha_mask(causal_mask(5))
PADDING = to_key_padding_mask(padding_mask(LENGTHS))
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


@pytest.fixture
def inputs():
    return torch.randn(3, 5, 8)


def pytorch(*, batch_first=True):
    return nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()


def attention(layer, **masks):
    return lambda x: layer(x, x, x, need_weights=False, **masks)


def running_sum(x, mask=None):
    return x.cumsum(1)


class Toy(nn.Module):
    """Self-attention that reaches too far; with residuals if it is deep."""

    def __init__(self, depth=0, *, reach=0, words=False):
        super().__init__()
        self.reach, self.deep, self.words = reach, depth > 0, words
        self.layers = nn.ModuleList(pytorch() for _ in range(max(depth, 1)))
        self.norm, self.table = nn.LayerNorm(8), nn.Embedding(20, 8)

    def forward(self, x, mask=None):
        x = self.table(x) if self.words else x
        blocked = to_mha_mask(causal_mask(x.shape[1], offset=self.reach))
        masks = {"attn_mask": blocked, "need_weights": False}
        masks["key_padding_mask"] = None if mask is None else ~mask
        for layer in self.layers:
            y = self.norm(x) if self.deep else x
            y, _ = layer(y, y, y, **masks)
            x = x + y if self.deep else y
        x = self.norm(x) if self.deep else x
        return x @ self.table.weight.mT if self.words else x


# --- in every type ----------------------------------------------------------


@each_type
@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_leaks_are_found_in_every_type_and_rounding_is_none(
    depth, words, dtype
):
    """A tolerance of 100 units in bfloat16 swallowed whole leaks."""
    x = torch.randn(3, 7, 8).to(dtype)
    if words:
        x = torch.randint(0, 20, (3, 7))
    for reach, sees in ((0, "causal"), (1, "causal"), (7, "all")):
        model = Toy(depth, reach=reach, words=words).to(dtype).eval()
        assert bool(future_leak(model, x)) == (reach > 0)
        assert bool(order_leak(model, x, moves=True)) == (reach < 7)
        assert not batch_leak(model, x)
        assert not missing(model, x, expected=sees)
        for trim in (False, True):
            check = partial(padding_leak, model, x, [2, 7, 4], trim=trim)
            assert bool(check()) == (reach > 0) or (trim and reach == 1)
            assert check(side="left")


@each_type
def test_other_causal_models_raise_no_alarm(dtype):
    def by_subtraction(x):  # rounds as the numbers behind it do
        return x.sum(1, keepdim=True) - x.flip(1).cumsum(1).flip(1)

    def by_fourier(x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        kernel = torch.exp(-torch.arange(6.0)).to(wide)[:, None]
        product = torch.fft.rfft(wide, 12, 1) * torch.fft.rfft(kernel, 12, 0)
        return torch.fft.irfft(product, 12, 1)[:, :6].to(x.dtype)

    def linear(x):
        keys = F.elu(x) + 1
        sums = (keys[..., None] * x[..., None, :]).cumsum(1)
        return (keys[..., None, :] @ sums)[..., 0, :]

    for seed in range(5):
        x = torch.randn(2, 6, 4).to(dtype)
        for model in (by_subtraction, by_fourier, linear, running_sum):
            assert not future_leak(model, x, seed=seed), model
        assert not missing(linear, x)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_size_of_inputs_and_outputs_plays_no_part(scale):
    x = scale * torch.randn(2, 5, 4)
    assert not future_leak(lambda x: 1e-6 * running_sum(x), x)
    assert future_leak(lambda x: 1e-6 * (x + 0.001 * x.flip(1)), x)


def test_rounding_of_one_large_number_hides_no_leak_of_another():
    def model(x):
        seen = (x[0, 4, 0] != 0).float()
        y = torch.zeros(2, 5, 1000)
        y[0, 0, 0], y[0, 1, 1] = 1e6 + 8 * seen, seen
        return y

    report = future_leak(model, torch.zeros(2, 5, 3))
    assert report.largest == 1
    assert report.where == "output 1 of sample 0 depends on input 4"


def test_computing_in_a_narrower_type_inside_is_no_leak():
    """Under autocast, and with half parameters, outputs may look wide."""
    x, layer = torch.randn(2, 20, 8), nn.Linear(8, 8)

    def added_up(x):
        parts = layer(x.to(layer.weight.dtype)).unbind(1)
        return sum(parts).float()[:, None]

    with torch.autocast("cpu", torch.bfloat16):
        assert not order_leak(added_up, x)
    layer.bfloat16()
    assert not order_leak(added_up, x)
    assert order_leak(lambda x: added_up(x) + x[:, :1], x)


def test_the_tolerance_can_be_set():
    def total(x):
        return x.cumsum(1) + x.sum((0, 1))

    x = torch.arange(24.0).reshape(2, 4, 3)
    for detect in (
        future_leak,
        batch_leak,
        partial(padding_leak, lengths=[2, 4]),
        partial(order_leak, moves=True),
        lambda model, **more: step_leak(model, lambda: running_sum, **more),
    ):
        report = detect(total, inputs=x)
        assert report
        assert not detect(total, inputs=x, tolerance=report.largest)
        assert detect(total, inputs=x, tolerance=0.99 * report.largest)
    assert LeakReport("future", math.nan, 1.0)


# --- the future -------------------------------------------------------------


def test_inverted_and_forgotten_masks_leak(inputs):
    """rasbt/LLMs-from-scratch #1061: attends to the future only."""
    inverted = causal_mask(5, offset=-1)
    inverted[0, 0] = True
    causal = attention(pytorch(), attn_mask=CAUSAL)
    opened = attention(pytorch())
    assert future_leak(attention(pytorch(), attn_mask=inverted), inputs)
    assert str(future_leak(causal, inputs)) == "future: no leak"
    # A mask in the first of two layers is not enough.
    assert future_leak(lambda x: opened(causal(x)[0]), inputs)
    assert not future_leak(lambda x: causal(causal(x)[0]), inputs)


@pytest.mark.parametrize("reach", [-1, 0, 1])
def test_the_offset_says_how_far_an_output_may_look(reach):
    matrix, x = torch.ones(5, 5).tril(reach), torch.randn(2, 5, 3)
    for offset in (-2, -1, 0, 1, 2):
        report = future_leak(lambda x: matrix @ x, x, offset=offset)
        assert bool(report) == (reach > offset)


def test_a_report_names_output_input_and_size():
    def second_reads_last(x):
        return x + F.pad(0.1 * x[:, 4:], (0, 0, 1, 3))

    report = future_leak(second_reads_last, torch.randn(1, 5, 3))
    assert report.where == "output 1 of sample 0 depends on input 4"
    size = f"{report.largest:.3g}"
    assert str(report) == f"future: LEAK of {size}, {report.where}"


@pytest.mark.plain
def test_outputs_at_other_positions_are_refused_or_declared():
    """They were reported as a leak; the last one sees all and may."""
    x = torch.randn(2, 6, 6)
    for model in (
        lambda x: running_sum(x)[:, -1:],
        lambda x: running_sum(x)[:, -3:],
        lambda x: running_sum(x)[:, -1, :4],
    ):
        with pytest.raises(ValueError, match="say positions='last'"):
            future_leak(model, x)
        assert not future_leak(model, x, positions="last")
    assert not future_leak(lambda x: x.mean(1), x, positions="last")
    assert future_leak(lambda x: x.flip(1)[:, :3], x, positions="last")
    with pytest.raises(ValueError, match="7 outputs for 6 inputs"):
        future_leak(lambda x: F.pad(x, (0, 0, 1, 0)), x, positions="last")
    with pytest.raises(ValueError, match="say rows='all'"):
        padding_leak(lambda x: x[:, 0, :4], x, [6, 2])
    assert padding_leak(lambda x: x[..., :4].mean(1), x, [6, 2], rows="all")
    alone = future_leak(running_sum, x[:1, :1])
    assert not alone


def test_time_first_is_no_batch(inputs):
    """(T, B, d) and unbatched input passed as no leak."""
    wrong, one = pytorch(batch_first=False), nn.MultiheadAttention(5, 1)
    causal = to_mha_mask(causal_mask(3))
    for model, x in (
        (attention(wrong), inputs),
        (attention(wrong, attn_mask=causal), inputs),
        (attention(one, attn_mask=causal), inputs[..., 0]),
    ):
        assert future_leak(model, x)
        assert batch_leak(model, x)
        assert order_leak(model, x, moves=True)
    for model in (
        lambda x: x.cumsum(0),
        lambda x: x.flip(0).cumsum(0).flip(0),
    ):
        report = future_leak(model, inputs)
        assert "other samples; is it (B, T, ...)?" in report.where


# --- padding ----------------------------------------------------------------


def test_padding_leaks_without_a_mask_only(inputs):
    layer, query = pytorch(), torch.randn(3, 2, 8)
    masked = attention(layer, key_padding_mask=PADDING)
    for lengths in (LENGTHS, torch.tensor(LENGTHS)):
        assert not padding_leak(masked, inputs, lengths)
        assert padding_leak(attention(layer), inputs, lengths)
    report = padding_leak(masked, inputs, LENGTHS, rows="all")
    assert "depends on the padding" in str(report)

    def cross(memory, **mask):
        return layer(query, memory, memory, **mask)

    check = partial(padding_leak, cross, inputs, LENGTHS, rows="all")
    assert check()
    assert not check(key_padding_mask=PADDING)


def test_a_causal_mask_hides_pads_on_the_right_only(inputs):
    """Left-padded data without a padding mask changed by 11.3."""
    toy = Toy().eval()
    keep = padding_mask(LENGTHS, side="left")[:, 0]
    assert not padding_leak(toy, inputs, LENGTHS)
    assert padding_leak(toy, inputs, LENGTHS, side="left")
    assert padding_leak(toy, inputs, keep=keep)
    report = padding_leak(toy, inputs, keep=keep, mask=keep)
    assert not report
    assert "numbers that are NaN" in report.note  # pads that see pads alone


def test_padding_may_have_holes(inputs):
    keep = torch.tensor([[1, 0, 1, 1, 0], [1] * 5, [0, 1, 0, 0, 1]]) > 0

    def mean(x, keep):
        sums = (x * keep[..., None]).sum(1, keepdim=True)
        return (sums / keep.sum(1)[:, None, None]).expand_as(x)

    assert not padding_leak(lambda x: mean(x, keep), inputs, keep=keep)
    assert padding_leak(lambda x: mean(x, keep | True), inputs, keep=keep)
    for trim in (False, True):
        assert not padding_leak(lambda x: 2 * x, inputs, keep=keep, trim=trim)


def test_masks_repeated_in_the_wrong_order_are_found(inputs):
    """CLIP4Clip #22: a head uses the mask of another sample."""
    mask = padding_mask(LENGTHS)
    wrong = (~mask).expand(-1, 5, -1).repeat(2, 1, 1)
    right = to_mha_mask(mask, num_heads=2, query_length=5)
    for mask, leaks in ((wrong, True), (right, False)):
        model = attention(pytorch(), attn_mask=mask)
        assert bool(padding_leak(model, inputs, LENGTHS)) == leaks


def test_models_that_mask_by_token_id_are_tested_by_trimming():
    table = torch.randn(9, 4)

    def mean(ids, pad=0):
        keep = (ids != pad)[..., None]
        return ((table[ids] * keep).sum(1) / keep.sum(1))[:, None]

    ids = torch.tensor([[3, 5, 0, 0], [1, 2, 3, 4]])
    check = partial(padding_leak, mean, ids, [2, 4], rows="all")
    assert not check(trim=True)
    assert check(trim=True, pad=-1)
    assert check(pad=-1)


@pytest.mark.plain
def test_where_nothing_is_changed_nothing_is_said():
    x = torch.randn(2, 4, 3)
    for call in (
        lambda: padding_leak(running_sum, x, [4, 4]),
        lambda: padding_leak(running_sum, x, [4, 4], trim=True),
        lambda: padding_leak(running_sum, x, keep=x[..., 0] < 9),
        lambda: order_leak(running_sum, x, lengths=[1, 0]),
        lambda: order_leak(running_sum, x * 0),
        lambda: step_leak(running_sum, lambda: running_sum, x, chunks=[4]),
    ):
        with pytest.raises(ValueError, match=r"nothing is (changed|tested)"):
            call()
    for padding in ({}, {"lengths": [4, 2], "keep": x[..., 0] > 0}):
        with pytest.raises(ValueError, match="either by lengths"):
            padding_leak(running_sum, x, **padding)


# --- the batch, the order ---------------------------------------------------


def test_attention_over_the_batch_axis_is_found(inputs):
    """pytorch/pytorch #122959: batch_first forgotten."""
    assert batch_leak(attention(pytorch(batch_first=False)), inputs)
    assert not batch_leak(attention(pytorch()), inputs)

    def second_reads_first(x):
        return torch.stack([x[0], x[1] + x[0]])

    report = batch_leak(second_reads_first, torch.randn(2, 3, 4))
    assert "of sample 1 depends on sample 0" in report.where


def test_the_order_of_keys_does_not_matter_to_attention(inputs):
    layer, query = pytorch(), torch.randn(3, 2, 8)

    def cross(memory):
        return layer(query, memory, memory, key_padding_mask=PADDING)

    assert not order_leak(cross, inputs, lengths=LENGTHS)
    assert order_leak(cross, inputs)
    assert not order_leak(attention(layer), inputs, moves=True)
    assert order_leak(attention(layer, attn_mask=CAUSAL), inputs, moves=True)


def test_heads_cut_without_a_transpose_are_found():
    """649453932/Chinese-Text-Classification-Pytorch #10."""

    def broken(x):
        heads = x.view(len(x) * 2, -1, x.shape[-1] // 2)
        return ((heads @ heads.mT).softmax(-1) @ heads).view(x.shape)

    x = torch.randn(2, 4, 6)
    assert order_leak(broken, x, moves=True)
    assert missing(broken, x, expected="all")


@pytest.mark.parametrize("position", range(5))
def test_every_key_moves(position):
    """A permutation that left keys in place could miss a fault."""
    for seed in range(5):
        x = torch.randn(1, 5, 2)
        assert order_leak(lambda x: x[:, [position]], x, seed=seed)


# --- a cache ----------------------------------------------------------------


def rotated(x, start):
    """Turn pairs of features by an angle that grows with the position."""
    places = start + torch.arange(x.shape[1], dtype=torch.float64)
    angle = places[:, None] / torch.arange(1, 5)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (4, 2)))
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def cached_attention(fault=""):
    """Make rotary attention with an empty cache, faulty or not."""
    table = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1))
    keys, values = [], []

    def step(x):
        query, key, value = x @ table.to(x.dtype)[:, None]
        start = sum(k.shape[1] for k in keys)
        places = {
            "offset forgotten": 0,
            "one too far": start + (start > 0),
            "one short": max(start - 1, 0),
        }
        place = places.get(fault, start)
        query, key = rotated(query, place), rotated(key, place)
        if fault == "turned twice":
            keys[:] = [rotated(k, 0) for k in keys]
        if fault == "last slot overwritten" and start:
            keys[-1], values[-1] = keys[-1][:, :-1], values[-1][:, :-1]
        keys.append(key)
        values.append(value)
        key, value = torch.cat(keys, 1), torch.cat(values, 1)
        offsets = {
            "top-left mask": 0,
            "open chunk": x.shape[1] + start,
            "chunk hides itself": start - (start > 0),
        }
        offset = offsets.get(fault, key.shape[1] - x.shape[1])
        mask = causal_mask(x.shape[1], key.shape[1], offset=offset)
        scores = (query @ key.mT).masked_fill(~mask, -math.inf)
        return scores.softmax(-1) @ value

    return step


def all_at_once(x):
    return cached_attention()(x)


@each_type
@pytest.mark.parametrize(
    "fault",
    [
        "offset forgotten",
        "one too far",
        "one short",
        "turned twice",
        "top-left mask",
        "last slot overwritten",
        "open chunk",
        "chunk hides itself",
    ],
)
def test_faults_of_a_cache_are_found(fault, dtype):
    x = torch.randn(2, 9, 8).to(dtype)
    report = step_leak(all_at_once, partial(cached_attention, fault), x)
    assert "depends on chunks of (3, 1, 2)" in str(report)


@each_type
@pytest.mark.parametrize("chunks", [(3, 1, 2), (1,), (8, 1), (2, 5), [4]])
def test_a_right_cache_raises_no_alarm(chunks, dtype):
    x = torch.randn(2, 9, 8).to(dtype)
    assert not step_leak(all_at_once, cached_attention, x, chunks=chunks)


def test_any_state_can_be_stepped(inputs):
    gru = nn.GRU(8, 6, batch_first=True).eval()

    def steps():
        states = [None]

        def step(x):
            output, state = gru(x, states.pop())
            states.append(state)
            return {"states": output}

        return step

    report = step_leak(gru, steps, inputs)
    assert str(report) == "step: no leak (read from 'states')"
    fresh = iter([steps()] * 2)
    report = step_leak(gru, lambda: next(fresh), inputs)
    assert "depends on an earlier cache" in report.where


# --- what is hidden ---------------------------------------------------------


@each_type
def test_a_mask_that_hides_too_much_is_found(dtype):
    x = torch.randn(2, 6, 8).to(dtype)
    report = missing(Toy(reach=-1).to(dtype).eval(), x)
    assert report.largest == 2  # elsewhere the query shows
    assert str(report).startswith("missing: 2 HIDDEN, output 0 does not see")
    window = causal_mask(6) & ~causal_mask(6, offset=-3)
    short = causal_mask(6) & ~causal_mask(6, offset=-2)
    layer = pytorch().to(dtype)
    for mask, found in ((window, 0), (short, 4)):
        model = attention(layer, attn_mask=~mask)
        assert missing(model, x, expected=window).largest == found
    assert str(missing(running_sum, x)) == "missing: nothing is hidden"


def test_inputs_that_show_only_nearby_are_not_missing():
    def narrow(x):
        return (1 - (x - 1.5).abs()).relu().cumsum(1)

    def sharp(x):
        scores = (30 * x @ x.mT).masked_fill(~causal_mask(12), -math.inf)
        return scores.softmax(-1) @ x

    assert not missing(narrow, torch.zeros(1, 6, 16))
    assert not missing(sharp, torch.randn(2, 12, 4) / 4)


@pytest.mark.plain
def test_what_is_expected_has_the_shape_of_outputs_and_inputs():
    x = torch.randn(2, 4, 3)
    assert not missing(lambda x: x.mean(1), x, expected="all")
    for wrong in ("past", torch.ones(4, 4), causal_mask(3), None):
        with pytest.raises(ValueError, match="expected must be 'causal'"):
            missing(running_sum, x, expected=wrong)
    with pytest.raises(ValueError, match="one output for each input"):
        missing(lambda x: x.mean(1), x)


# --- influence --------------------------------------------------------------


def test_influence_says_which_output_depends_on_which_input():
    matrix = torch.tensor([[1.0, 0, 2], [0, 0, 0]])
    x = torch.randn(2, 3, 4)
    found = influence(lambda x: matrix @ x, x)
    assert torch.equal(found > 0, matrix > 0)
    assert influence(lambda x: x.sum(1), x).shape == (1, 3)  # one output


@pytest.mark.parametrize("low", [0, 3])
@pytest.mark.parametrize("span", [1, 2, 7])
def test_token_ids_are_changed_to_other_token_ids(low, span):
    ids, seen = torch.randint(low, low + span, (4, 6)), []

    def watch(ids):
        seen.append(ids.clone())
        return ids[..., None].double()

    found = influence(watch, ids)
    assert torch.equal(found > 0, torch.eye(6, dtype=torch.bool))
    for position, other in enumerate(seen[3:]):
        assert (other[:, position] != ids[:, position]).all()
        assert other.min() >= 0
        assert span == 1 or ids.min() <= other.min() <= ids.max()
        assert span == 1 or other.max() <= ids.max()


@each_type
def test_every_input_is_moved_far_and_kept_in_its_type(dtype):
    seen = []

    def model(x):
        seen.append(x.clone())
        return x * 1.0

    influence(model, torch.zeros(2, 3, 4, dtype=dtype))
    assert {x.dtype for x in seen} == {dtype}
    moved = torch.stack(seen).abs().amax(0).double()
    assert (moved > 0).all()
    assert 5 < moved.square().mean().sqrt() < 20


def test_inputs_drawn_from_the_same_seed_are_moved_elsewhere():
    """Otherwise the noise is a multiple of them, and a norm hides it."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8)
    assert influence(nn.LayerNorm(8), x, seed=0).diagonal().min() > 0.5


# --- NaN and infinity -------------------------------------------------------


@pytest.mark.plain
def test_nan_that_was_there_before_is_no_leak():
    """As in a row with nothing to attend to."""

    def dead_row(x):
        return running_sum(x).index_fill(1, torch.tensor(0), math.nan)

    x = torch.randn(2, 4, 3)
    report = future_leak(dead_row, x)
    assert not report
    assert "left out 6 numbers that are NaN without any change" in str(report)
    assert future_leak(lambda x: dead_row(x) + x.mean(1, keepdim=True), x)
    x[0, 2:] = math.nan  # and in the padding it may not come through
    assert not padding_leak(running_sum, x, [2, 4])
    assert padding_leak(lambda x: x.cumsum(1) + 0 * x.sum(1, True), x, [2, 4])
    with pytest.raises(ValueError, match="nothing but NaN"):
        future_leak(lambda x: x * math.nan, x)


@pytest.mark.parametrize("before", [False, True])
def test_nan_that_comes_or_goes_is_a_leak_and_told_as_that(before):
    def poisoned(x):
        bad = ((x[:, 3] == 6) if before else (x[:, 3] > 5)).any(1)
        return x.masked_fill(bad[:, None, None], math.nan)

    x = torch.zeros(4, 4, 2)
    x[0, 3] = 6.0 * before
    report = future_leak(poisoned, x)
    when = "before" if before else "after"
    assert f"is NaN {when} a change of input 3" in report.where
    assert report.largest == math.inf


@pytest.mark.parametrize("filler", [0.0, torch.inf, -torch.inf])
def test_infinite_outputs_hide_no_leak(filler):
    x, pads = torch.randn(2, 5, 3), ~padding_mask([3, 5], 5).mT

    def centred(x, share=1.0):
        mean = share * x.mean(1, keepdim=True)
        return (x - mean).masked_fill(pads, filler)

    assert padding_leak(centred, x, [3, 5])
    assert not padding_leak(centred, x, [3, 5], share=0.0)


# --- what goes in and comes out ---------------------------------------------


class ModelOutput(OrderedDict):
    """As in Hugging Face's library."""


@pytest.mark.parametrize(
    ("wrap", "note"),
    [
        (lambda y: y, ""),
        (lambda y: (y, None), ""),
        (lambda y: {"logits": y}, "read from 'logits'"),
        (lambda y: (y.sum(), y[:1], y.argmax(-1), y), "read from 3"),
        (
            lambda y: ModelOutput(loss=y.sum(), ids=y.argmax(-1), logits=y),
            "read from 'logits'",
        ),
    ],
)
def test_the_first_floating_output_with_these_axes_is_read(wrap, note):
    x = torch.randn(2, 5, 3)
    report = future_leak(lambda x: wrap(running_sum(x)), x)
    assert not report
    assert report.note == note
    assert note in str(report)
    assert future_leak(lambda x: wrap(x.flip(1)), x)


@each_type
def test_token_ids_may_come_out(dtype):
    """As of a model that decodes: they are equal or not, however large."""
    x = torch.zeros(2, 5, 3, dtype=dtype)
    assert not future_leak(lambda x: x.argmax(-1), x)
    assert future_leak(lambda x: 9999 + (x.flip(1) != 0).any(-1).long(), x)


def test_what_else_the_model_needs_is_passed_on(inputs):
    toy, keep = Toy(reach=9).eval(), padding_mask(LENGTHS)[:, 0]
    assert padding_leak(toy, inputs, LENGTHS)
    assert not padding_leak(toy, inputs, LENGTHS, mask=keep)
    assert not padding_leak(toy, inputs, keep=keep, mask=keep)


def test_a_model_may_write_to_what_it_is_given():
    def in_place(x, mask):
        mask.logical_not_()
        return x.mul_(2).cumsum_(1) * mask[..., None]

    x, mask = torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool)
    kept = x.clone()
    for detect in (future_leak, missing, batch_leak):
        assert not detect(in_place, x, mask=mask)
    assert torch.equal(x, kept)
    assert not mask.any()
    buffer = torch.zeros(2, 4, 3)  # an output that is overwritten hides none
    assert future_leak(lambda x: buffer.copy_(x.flip(1)), x)


class Counting(nn.Module):
    """A model that changes itself when it is called."""

    def __init__(self, shown=0):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.norm, self.shown, self.last = nn.BatchNorm1d(3), shown, "mine"

    def forward(self, x):
        self.count += 1
        self.last = self.norm(x.mT)
        return running_sum(x) + self.shown * self.count


@pytest.mark.plain
@pytest.mark.parametrize("wrap", ["itself", "closure", "partial", "method"])
def test_the_state_of_a_model_is_put_back_and_told_from_dropout(wrap):
    wraps = {
        "itself": lambda m: m,
        "closure": lambda m: lambda x: m(x),
        "partial": partial,
        "method": lambda m: m.forward,
    }
    x, model, shown = torch.randn(2, 4, 3), Counting(), Counting(1)
    before = copy.deepcopy(model.state_dict())
    assert not future_leak(wraps[wrap](model), x)
    with pytest.raises(ValueError, match="keeps a state") as caught:
        future_leak(wraps[wrap](shown), x)
    assert "dropout" not in str(caught.value)
    for each in (model, shown):
        assert each.training
        assert each.last == "mine"
        for name, value in each.state_dict().items():
            assert torch.equal(value, before[name]), name


@pytest.mark.plain
def test_dropout_must_be_off(inputs):
    model = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    for detect in (influence, future_leak, batch_leak, order_leak, missing):
        with pytest.raises(ValueError, match=r"random: .* model\.eval"):
            detect(attention(model), inputs)
    assert model.training
    with pytest.raises(ValueError, match="keeps a state"):
        step_leak(cached_attention(), cached_attention, inputs)


def test_a_default_device_plays_no_part(inputs):
    model = attention(pytorch(), attn_mask=CAUSAL)
    with torch.device("meta"):
        assert not future_leak(model, inputs)
        assert not padding_leak(model, inputs, LENGTHS)
        assert padding_leak(model, inputs, LENGTHS, side="left")
        assert not batch_leak(model, inputs)
        assert order_leak(model, inputs, lengths=LENGTHS, moves=True)
        assert not missing(model, inputs)
        assert step_leak(model, lambda: running_sum, inputs)


@pytest.mark.parametrize(
    "detect", [influence, future_leak, batch_leak, order_leak]
)
def test_the_seed_decides_and_nothing_else(detect):
    """Not torch's own state; and nobody else's random numbers change."""

    def mixed(x):
        return x.flip(1) + x.sum(0)

    x = torch.randn(2, 4, 3)
    state = torch.get_rng_state()
    first = detect(mixed, x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert str(detect(mixed, x, seed=0)) == str(first)
    assert str(detect(mixed, x, seed=5)) != str(first)
