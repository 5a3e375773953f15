"""Detectors find the faults that they are for, and only those."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from attention_lib.leaks import (
    LeakReport,
    batch_leak,
    future_leak,
    influence,
    order_leak,
    padding_leak,
)
from attention_lib.masks import (
    causal_mask,
    padding_mask,
    to_key_padding_mask,
    to_mha_mask,
)

METHODS = ["perturb", "gradient"]
LENGTHS = [2, 5, 3]


@pytest.fixture
def layer():
    return nn.MultiheadAttention(8, 2, batch_first=True).eval()


@pytest.fixture
def inputs():
    return torch.randn(3, 5, 8)


def attention(layer, **masks):
    return lambda x: layer(x, x, x, need_weights=False, **masks)


CAUSAL = to_mha_mask(causal_mask(5))
PADDING = to_key_padding_mask(padding_mask(LENGTHS))


@pytest.mark.parametrize("method", METHODS)
def test_a_causal_layer_passes_and_an_open_one_does_not(layer, inputs, method):
    closed = future_leak(attention(layer, attn_mask=CAUSAL), inputs,
                         method=method)  # fmt: skip
    opened = future_leak(attention(layer), inputs, method=method)
    assert not closed
    assert opened
    assert str(closed) == "future: no leak"
    assert str(opened).startswith("future: LEAK of ")


@pytest.mark.parametrize("method", METHODS)
def test_inverted_polarity_leaks(layer, inputs, method):
    """rasbt/LLMs-from-scratch #1061: attends to the future only."""
    inverted = causal_mask(5, offset=-1)
    inverted[0, 0] = True
    assert future_leak(
        attention(layer, attn_mask=inverted), inputs, method=method
    )


def test_a_mask_in_the_first_of_two_layers_is_not_enough(inputs):
    first, second = (
        nn.MultiheadAttention(8, 2, batch_first=True).eval() for _ in "12"
    )

    def two(x, mask):
        x = first(x, x, x, attn_mask=CAUSAL, need_weights=False)[0]
        return second(x, x, x, attn_mask=mask, need_weights=False)[0]

    assert future_leak(lambda x: two(x, None), inputs)
    assert not future_leak(lambda x: two(x, CAUSAL), inputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reach", [-1, 0, 1])
def test_the_offset_says_how_far_an_output_may_look(method, reach):
    matrix = torch.ones(5, 5).tril(reach)
    for offset in (-2, -1, 0, 1, 2):
        report = future_leak(
            lambda x: matrix @ x,
            torch.randn(2, 5, 3),
            offset=offset,
            method=method,
        )
        assert bool(report) == (reach > offset)


def test_influence_says_which_output_depends_on_which_input():
    matrix = torch.tensor([[1.0, 0, 2], [0, 0, 0]])

    def mix(x):
        return matrix @ x

    for method in METHODS:
        found = influence(mix, torch.randn(2, 3, 4), method=method)
        assert found.shape == (2, 3)
        assert torch.equal(found > 0, matrix > 0)


def test_the_gradient_measures_the_slope():
    found = influence(
        lambda x: torch.tensor([[3.0, 0], [0, 5]]) @ x,
        torch.randn(1, 2, 1),
        method="gradient",
    )
    assert found[0, 0] / 3 != found[1, 1] / 5
    direction = torch.randn(
        1, 2, 1, generator=torch.Generator().manual_seed(0)
    ).abs()
    assert torch.allclose(found.diagonal() / direction[0, :, 0],
                          torch.tensor([3.0, 5.0]))  # fmt: skip


@pytest.mark.parametrize("trim", [False, True])
def test_padding_leaks_without_a_mask_only(layer, inputs, trim):
    def masked(x):
        keep = padding_mask(LENGTHS)
        if len(x) == 1:
            keep = torch.ones(1, 1, x.shape[1], dtype=torch.bool)
        return layer(x, x, x, key_padding_mask=to_key_padding_mask(keep))

    assert not padding_leak(masked, inputs, LENGTHS, trim=trim)
    assert padding_leak(attention(layer), inputs, LENGTHS, trim=trim)


def test_outputs_of_pads_may_change_unless_all_rows_count(layer, inputs):
    masked = attention(layer, key_padding_mask=PADDING)
    assert not padding_leak(masked, inputs, torch.tensor(LENGTHS))
    assert padding_leak(masked, inputs, LENGTHS, rows="all")
    query = torch.randn(3, 2, 8)

    def cross(memory):
        return layer(query, memory, memory, key_padding_mask=PADDING)

    assert not padding_leak(cross, inputs, LENGTHS, rows="all")


def test_a_report_names_the_sample_and_its_length(inputs):
    def leaky(x):
        return torch.cat([x[:1], x[1:2], x[2:] + x[2:, 4:]])

    report = padding_leak(leaky, inputs, LENGTHS)
    assert "sample 2 depends on what follows its 3 tokens" in str(report)


def test_models_that_mask_by_token_id_are_tested_by_trimming():
    table = torch.randn(9, 4)

    def mean(ids, mask):
        keep = (ids != 0)[..., None] if mask else torch.ones(1, 1, 1)
        rows = table[ids] * keep
        total = keep.expand(*ids.shape, 1).sum(1, keepdim=True)
        return (rows.sum(1, keepdim=True) / total).expand_as(rows)

    ids = torch.tensor([[3, 5, 0, 0], [1, 2, 3, 4]])
    assert not padding_leak(lambda x: mean(x, True), ids, [2, 4], trim=True)
    assert padding_leak(lambda x: mean(x, False), ids, [2, 4], trim=True)
    assert padding_leak(lambda x: mean(x, False), ids, [2, 4])


def test_attention_over_the_batch_axis_is_found(inputs):
    """pytorch/pytorch #122959: batch_first forgotten."""
    wrong = nn.MultiheadAttention(8, 2).eval()
    right = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    report = batch_leak(attention(wrong), inputs)
    assert report
    assert "depends on sample" in str(report)
    assert not batch_leak(attention(right), inputs)


def test_masks_repeated_in_the_wrong_order_are_found(layer, inputs):
    """CLIP4Clip #22: a head uses the mask of another sample."""
    mask = padding_mask(LENGTHS)
    per_head = (~mask).expand(-1, 5, -1)
    wrong = attention(layer, attn_mask=per_head.repeat(2, 1, 1))
    right = attention(
        layer, attn_mask=to_mha_mask(mask, num_heads=2, query_length=5)
    )
    assert padding_leak(wrong, inputs, LENGTHS)
    assert not padding_leak(right, inputs, LENGTHS)


def test_the_order_of_keys_does_not_matter_to_attention(layer, inputs):
    query = torch.randn(3, 2, 8)

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
        weights = (heads @ heads.mT).softmax(-1)
        return (weights @ heads).view(x.shape)

    report = order_leak(broken, torch.randn(2, 4, 6), moves=True)
    assert report
    assert "depends on the order" in str(report)


def test_every_key_moves():
    """A permutation that left keys in place could miss a fault."""
    for position in range(5):
        for seed in range(5):
            assert order_leak(
                lambda x, at=position: x[:, at : at + 1],
                torch.randn(1, 5, 2),
                seed=seed,
            )


def test_token_ids_are_changed_to_other_token_ids():
    ids = torch.randint(0, 7, (4, 6))
    seen = []

    def watch(ids):
        seen.append(ids)
        return ids[..., None].double()

    found = influence(watch, ids)
    assert torch.equal(found > 0, torch.eye(6, dtype=torch.bool))
    changed = seen[2:]
    for position, other in enumerate(changed):
        assert (other[:, position] != ids[:, position]).all()
        assert other.min() >= ids.min()
        assert other.max() <= ids.max()


def test_inputs_are_not_written_to(layer, inputs):
    kept = inputs.clone()
    model = attention(layer)
    future_leak(model, inputs)
    padding_leak(model, inputs, LENGTHS)
    batch_leak(model, inputs)
    order_leak(model, inputs, lengths=LENGTHS, moves=True)
    influence(model, inputs, method="gradient")
    assert torch.equal(inputs, kept)
    assert all(p.grad is None for p in layer.parameters())


def test_nan_counts_as_a_leak():
    assert LeakReport("future", math.nan, 1.0, "")

    def poisoned(x):
        return x + x.flip(1).log() * 0

    assert future_leak(poisoned, torch.rand(1, 3, 2))


def test_an_output_that_is_nan_before_and_after_is_reported():
    def dead(x):
        return x / torch.zeros(())

    assert future_leak(dead, torch.zeros(1, 3, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_in_half_precision_is_no_leak(layer, inputs, dtype):
    causal = attention(layer.to(dtype), attn_mask=CAUSAL)
    assert not future_leak(causal, inputs.to(dtype))


def test_the_tolerance_can_be_set():
    def barely(x):
        return x + 1e-3 * x.flip(1)

    x = torch.randn(1, 4, 3)
    assert future_leak(barely, x)
    assert not future_leak(barely, x, tolerance=1.0)


def test_numpy_code_can_be_examined():
    def numpy_mean(x):
        steps = np.arange(1, x.shape[1] + 1)[:, None]
        return torch.from_numpy(np.cumsum(x.numpy(), axis=1) / steps)

    assert not future_leak(numpy_mean, torch.randn(2, 4, 3))


def test_dropout_must_be_off(inputs):
    model = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    for detect in (future_leak, batch_leak, order_leak):
        with pytest.raises(ValueError, match=r"model\.eval"):
            detect(attention(model), inputs)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: influence(abs, [1.0]), TypeError, "inputs must be a tensor"),
        (lambda: influence(abs, torch.ones(3)), ValueError, r"\(B, T\)"),
        (lambda: influence(abs, torch.ones(0, 3)), ValueError, "not be empty"),
        (
            lambda: influence(abs, torch.ones(1, 2), method="guess"),
            ValueError,
            "method must be",
        ),
        (
            lambda: influence(
                abs, torch.ones(1, 2, dtype=torch.long), method="gradient"
            ),
            TypeError,
            "use method='perturb'",
        ),
        (
            lambda: influence(abs, torch.ones(1, 2, dtype=torch.long)),
            ValueError,
            "single token id 1",
        ),
        (
            lambda: influence(lambda x: x.tolist(), torch.ones(1, 2)),
            TypeError,
            "model must return a tensor",
        ),
        (
            lambda: batch_leak(abs, torch.ones(1, 2)),
            ValueError,
            "at least two samples",
        ),
        (
            lambda: padding_leak(abs, torch.ones(2, 2), [1]),
            ValueError,
            r"lengths \[1\]",
        ),
        (
            lambda: padding_leak(abs, torch.ones(1, 2), [3]),
            ValueError,
            r"lengths \[3\]",
        ),
        (
            lambda: order_leak(abs, torch.ones(1, 2), lengths=[-1]),
            ValueError,
            r"lengths \[-1\]",
        ),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()


def total(x):
    """Every output is the sum of all inputs of all samples."""
    return x.sum((0, 1)).expand_as(x)


@pytest.mark.parametrize(
    "detect",
    [
        lambda **more: influence(total, torch.ones(2, 4, 3), **more),
        lambda **more: future_leak(total, torch.ones(2, 4, 3), **more),
        lambda **more: padding_leak(
            total, torch.ones(2, 4, 3), [2, 4], **more
        ),
        lambda **more: batch_leak(total, torch.ones(2, 4, 3), **more),
        lambda **more: order_leak(
            lambda x: x * torch.arange(1.0, 5.0)[:, None],
            torch.arange(24.0).reshape(2, 4, 3),
            **more,
        ),
    ],
    ids=["influence", "future", "padding", "batch", "order"],
)
def test_the_seed_decides_and_nothing_else(detect):
    """Not torch's own state; and nobody else's random numbers change."""
    torch.manual_seed(1)
    first = detect()
    following = torch.rand(1)
    torch.manual_seed(2)
    again, other = detect(seed=0), detect(seed=5)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), following)
    if isinstance(first, LeakReport):
        assert first == again
        assert first != other
    else:
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


@pytest.mark.parametrize("detect", [batch_leak, order_leak, future_leak])
def test_each_detector_takes_its_tolerance(detect):
    model, inputs = total, torch.ones(2, 4, 3)
    if detect is order_leak:
        inputs = torch.arange(24.0).reshape(2, 4, 3)
        model = lambda x: x[:, :1]  # noqa: E731
    report = detect(model, inputs)
    assert report
    assert report.kind == detect.__name__.removesuffix("_leak")
    assert not detect(model, inputs, tolerance=report.largest)
    assert detect(model, inputs, tolerance=0.99 * report.largest)


def test_padding_takes_its_tolerance_too():
    report = padding_leak(total, torch.ones(2, 4, 3), [2, 4])
    assert report
    assert report.kind == "padding"
    looser = padding_leak(
        total, torch.ones(2, 4, 3), [2, 4], tolerance=report.largest
    )
    assert not looser


def test_a_report_on_two_samples_names_giver_and_taker():
    """The smallest batch in which something can leak."""

    def second_reads_first(x):
        return torch.stack([x[0], x[1] + x[0]])

    report = batch_leak(second_reads_first, torch.randn(2, 3, 4))
    assert report.where == "sample 1 depends on sample 0"


def test_sequences_without_a_token_have_an_order_too():
    def first_of(x):
        return x[:, :1]

    inputs = torch.randn(2, 3, 4)
    assert not order_leak(first_of, inputs, lengths=[0, 0])
    assert order_leak(first_of, inputs, lengths=[0, 3])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_every_input_is_moved_far_and_kept_in_its_type(method, dtype):
    seen = []

    def model(x):
        seen.append(x.detach().clone())
        return x * 1.0

    inputs = torch.zeros(2, 3, 4, dtype=dtype)
    influence(model, inputs, method=method)
    assert {x.dtype for x in seen} == {dtype}
    if method == "perturb":
        moved = torch.stack(seen).abs().amax(0)
        assert (moved > 0).all()
        assert 5 < moved.double().square().mean().sqrt() < 20


KEEP = padding_mask([3, 5], 5).mT


@pytest.mark.parametrize("filler", [0.0, torch.inf, -torch.inf])
def test_infinite_outputs_hide_no_leak(filler):
    def centred(x):
        return (x - x.mean(1, keepdim=True)).masked_fill(~KEEP, filler)

    assert padding_leak(centred, torch.randn(2, 5, 3), [3, 5])


def test_scores_that_are_masked_with_infinity_are_no_leak():
    def scores(x):
        return (x @ x.mT).tril() + torch.full((5, 5), -torch.inf).triu(1)

    inputs = torch.randn(2, 5, 3)
    assert not future_leak(scores, inputs)
    assert future_leak(lambda x: scores(x + x.mean(1, keepdim=True)), inputs)


def test_token_ids_may_come_out():
    """As of a model that decodes: they are equal or not."""
    ids = torch.randint(1, 9, (2, 5))
    assert not padding_leak(lambda x: x + 1, ids, [3, 5])
    assert padding_leak(lambda x: x + x.sum(1, keepdim=True), ids, [3, 5])


@pytest.mark.plain
def test_an_output_without_a_gradient_is_refused_by_name():
    with pytest.raises(ValueError, match="output of model has no gradient"):
        future_leak(torch.no_grad()(torch.sin), torch.randn(1, 3, 2),
                    method="gradient")  # fmt: skip
