"""Each exercise of the chapter: the solution passes, mistakes are named."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from attention_lib.course.exercises import _core
from attention_lib.course.exercises._core import evaluate
from attention_lib.multihead import MultiHeadAttention
from attention_lib.positions import sinusoidal_encoding
from attention_lib.transformer import EncoderBlock, FeedForward


def accepted(name, answer):
    verdict = evaluate(name, answer)
    assert verdict.status == "correct", verdict.text


def rejected(name, answer, words):
    verdict = evaluate(name, answer)
    assert verdict.status == "wrong", verdict.text
    assert words in verdict.text, verdict.text


def test_every_exercise_of_the_chapter_is_tested_here():
    names = {name for name in _core.names() if name.startswith("07-")}
    assert names == {
        "07-encoding",
        "07-halves",
        "07-layer-norm",
        "07-parameters",
        "07-pre-norm",
        "07-shift",
        "07-twins",
    }


# --- 07-encoding -------------------------------------------------------------


def test_the_encoding_of_the_library_is_right():
    accepted("07-encoding", sinusoidal_encoding(torch.tensor([1]), 4)[0])
    accepted("07-encoding", [0.841, 0.540, 0.010, 1.000])
    accepted("07-encoding", np.array([0.8415, 0.5403, 0.01, 0.99995]))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0.8415, 0.5403, 0.0998, 0.9950], "the 2 is missing"),
        ([0.0100, 0.99995, 0.0001, 1.0], "counted from 0"),
        ([0.8415, 0.0100, 0.5403, 1.0], "another order"),
        ([0.5403, 0.8415, 1.0, 0.01], "Sine comes first"),
        ([0, 1, 0, 1], "position 0"),
        ([0.01745, 0.99985, 0.00017, 1.0], "in degrees"),
        ([0.8415, 0.5403], "shape is (2,), not (4,)"),
    ],
)
def test_mistakes_in_the_encoding_are_named(answer, words):
    rejected("07-encoding", answer, words)


# --- 07-shift ----------------------------------------------------------------


def shift_by_numpy(steps, frequency):
    turn = np.exp(1j * steps * frequency)
    return np.array([[turn.real, -turn.imag], [turn.imag, turn.real]])


def test_a_shift_written_with_complex_numbers_is_right():
    accepted("07-shift", shift_by_numpy)


def transposed(steps, frequency):
    return shift_by_numpy(steps, frequency).T


def forgets_the_steps(steps, frequency):
    return shift_by_numpy(1, frequency)


def both_signs_alike(steps, frequency):
    return np.abs(shift_by_numpy(steps, frequency))


def mirror(steps, frequency):
    c, s = math.cos(steps * frequency), math.sin(steps * frequency)
    return torch.tensor([[c, -s], [-s, c]])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (transposed, "from position p + k back to p"),
        (forgets_the_steps, "always shifts by one step"),
        (mirror, "same sign"),
        (lambda steps, frequency: steps * frequency, "shape"),
    ],
)
def test_mistakes_in_the_shift_are_named(answer, words):
    rejected("07-shift", answer, words)


# --- 07-layer-norm -----------------------------------------------------------


def norm_by_torch(x, weight, bias, eps=1e-5):
    return nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def norm_by_numpy(x, weight, bias, eps=1e-5):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * weight + bias


def test_the_norm_of_torch_and_one_in_numpy_are_right():
    accepted("07-layer-norm", norm_by_torch)
    accepted("07-layer-norm", norm_by_numpy)


def unbiased(x, weight, bias, eps=1e-5):
    return (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, keepdim=True) + eps
    ).sqrt() * weight + bias


def outside(x, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred**2).mean(-1, keepdim=True).sqrt()
    return centred / (deviation + eps) * weight + bias


def like_batch_norm(x, weight, bias, eps=1e-5):
    flat = x.reshape(-1, x.shape[-1])
    normed = (x - flat.mean(0)) / (flat.var(0, unbiased=False) + eps).sqrt()
    return normed * weight + bias


def whole_sentence(x, weight, bias, eps=1e-5):
    normed = nn.functional.layer_norm(x, x.shape[-2:], eps=eps)
    return normed * weight + bias


def root_mean_square(x, weight, bias, eps=1e-5):
    return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def no_scale(x, weight, bias, eps=1e-5):
    return nn.functional.layer_norm(x, x.shape[-1:], None, bias, eps)


def no_shift(x, weight, bias, eps=1e-5):
    return nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps)


def in_place(x, weight, bias, eps=1e-5):
    x -= x.mean(-1, keepdim=True)
    x /= (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return x * weight + bias


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (unbiased, "unbiased=False"),
        (outside, "under the root"),
        (like_batch_norm, "that is batch norm"),
        (whole_sentence, "a whole sentence"),
        (root_mean_square, "RMS norm"),
        (no_scale, "multiplied by weight"),
        (no_shift, "bias still has to be added"),
        (in_place, "changes its argument x"),
    ],
)
def test_mistakes_in_the_norm_are_named(answer, words):
    rejected("07-layer-norm", answer, words)


# --- 07-pre-norm -------------------------------------------------------------


def pre(x, attention, feed_forward, first_norm, second_norm):
    hidden = attention(first_norm(x)) + x
    return hidden + feed_forward(second_norm(hidden))


def post(x, attention, feed_forward, first_norm, second_norm):
    hidden = first_norm(attention(x) + x)
    return second_norm(hidden + feed_forward(hidden))


def normed_stream(x, attention, feed_forward, first_norm, second_norm):
    hidden = first_norm(x)
    hidden = second_norm(hidden + attention(hidden))
    return hidden + feed_forward(hidden)


def no_way_round(x, attention, feed_forward, first_norm, second_norm):
    return feed_forward(second_norm(attention(first_norm(x))))


def side_by_side(x, attention, feed_forward, first_norm, second_norm):
    changes = (attention(first_norm(x)), feed_forward(second_norm(x)))
    return x + sum(changes)


def same_norm(x, attention, feed_forward, first_norm, second_norm):
    for sublayer in (attention, feed_forward):
        x = x + sublayer(first_norm(x))
    return x


def lost(x, attention, feed_forward, first_norm, second_norm):
    hidden = x + attention(first_norm(x))
    return x + feed_forward(second_norm(hidden))


def test_a_pre_norm_block_is_right():
    accepted("07-pre-norm", pre)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (post, "This is post-norm"),
        (normed_stream, "leaves the stream alone"),
        (no_way_round, "no residual connection"),
        (side_by_side, "read the same x"),
        (same_norm, "first_norm twice"),
        (lost, "lost on the stream"),
    ],
)
def test_mistakes_in_the_order_of_events_are_named(answer, words):
    rejected("07-pre-norm", answer, words)


# --- 07-halves ---------------------------------------------------------------


def halves(features, positions):
    """The usual way of writing it: rotate_half and doubled angles."""
    width = features.shape[-1]
    frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2) / width)
    angles = torch.outer(positions.float(), frequencies).repeat(1, 2)
    left, right = features[..., : width // 2], features[..., width // 2 :]
    half = torch.cat((-right, left), dim=-1)
    return features * angles.cos() + half * angles.sin()


def neighbours(features, positions):
    width = features.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    turn = torch.polar(
        torch.ones(len(positions), width // 2),
        positions[:, None] * frequencies,
    )
    pairs = torch.view_as_complex(features.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2)


def other_way_round(features, positions):
    return halves(features, -positions)


def one_frequency(features, positions):
    left, right = features.chunk(2, dim=-1)
    turn = positions[:, None].float()
    return torch.cat(
        (
            left * turn.cos() - right * turn.sin(),
            right * turn.cos() + left * turn.sin(),
        ),
        dim=-1,
    )


def no_minus(features, positions):
    width = features.shape[-1]
    frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2) / width)
    angles = torch.outer(positions.float(), frequencies).repeat(1, 2)
    half = features.roll(width // 2, dims=-1)
    return features * angles.cos() + half * angles.sin()


def half_the_exponent(features, positions):
    width = features.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(width // 2) / width)
    angles = (positions[:, None] * frequencies).repeat(1, 2)
    left, right = features.chunk(2, dim=-1)
    half = torch.cat((-right, left), dim=-1)
    return features * angles.cos() + half * angles.sin()


def test_rotate_half_is_right():
    accepted("07-halves", halves)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (neighbours, "You turn neighbours"),
        (other_way_round, "wrong way round"),
        (one_frequency, "same frequency"),
        (no_minus, "needs a minus"),
        (half_the_exponent, "of pair i is 2i / width"),
    ],
)
def test_mistakes_in_the_rotation_are_named(answer, words):
    rejected("07-halves", answer, words)


# --- 07-parameters -----------------------------------------------------------


def count(d_model, hidden_dim):
    block = EncoderBlock(
        MultiHeadAttention(d_model, 1),
        FeedForward(d_model, hidden_dim),
        torch.nn.LayerNorm(d_model),
        torch.nn.LayerNorm(d_model),
    )
    return sum(parameter.numel() for parameter in block.parameters())


def test_counting_the_parameters_of_a_block_is_right():
    accepted("07-parameters", count)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda d, h: 3 * (d * d + d) + 2 * d * h + h + d + 4 * d, "four"),
        (
            lambda d, h: 4 * (d * d + d) + 2 * d * h + h + d,
            "The two norms have",
        ),
        (lambda d, h: 4 * d * d + 2 * d * h + 4 * d, "have biases"),
        (lambda d, h: 4 * d * d + 2 * d * h, "These are the matrices"),
        (lambda d, h: count(d, h) - 2 * d, "two norms"),
    ],
)
def test_mistakes_in_the_count_are_named(answer, words):
    rejected("07-parameters", answer, words)


# --- 07-twins ----------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        ("the dog chases the cat", "the cat chases the dog"),
        ["The bird sees the fish.", "the fish sees the bird"],
        ("a big cat sees a small dog", "a small cat sees a big dog"),
    ],
)
def test_two_orders_of_the_same_words_are_right(answer):
    accepted("07-twins", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (("the dog eats the cat", "the cat chases the dog"), "has 'chases'"),
        (("the dog sees a cat", "a cat sees the the dog"), "same words."),
        (("the dog chases the cat",) * 2, "are the same"),
        (("the dog", "dog the"), "a subject, a verb and an object"),
        (
            ("the dog bites the man", "the man bites the dog"),
            "no word 'bites'",
        ),
        ("the dog chases the cat", "two sentences"),
    ],
)
def test_sentences_that_are_no_twins_are_refused(answer, words):
    rejected("07-twins", answer, words)


# --- stubs -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["07-shift", "07-layer-norm", "07-pre-norm"])
def test_stubs_count_as_not_attempted(name):
    verdict = evaluate(name, lambda *arguments: None)
    assert verdict.status == "not attempted"
    assert evaluate("07-twins", (..., ...)).status == "not attempted"
