"""Answers to the exercises of chapter 7, and what they are told."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn.functional import layer_norm
from verdicts import RIGHT, verdicts


def shift(steps, frequency):
    turn = np.exp(1j * steps * frequency)
    return np.array([[turn.real, -turn.imag], [turn.imag, turn.real]])


def mirror(steps, frequency):
    c, s = math.cos(steps * frequency), math.sin(steps * frequency)
    return torch.tensor([[c, -s], [-s, c]])


def norm_by_torch(x, weight, bias, eps=1e-5):
    return layer_norm(x, x.shape[-1:], weight, bias, eps)


def norm_by_numpy(x, weight, bias, eps=1e-5):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * weight + bias


def in_place(x, weight, bias, eps=1e-5):
    x -= x.mean(-1, keepdim=True)
    x /= (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return x * weight + bias


def whole_sentence(x, weight, bias, eps=1e-5):
    return layer_norm(x, x.shape[-2:], eps=eps) * weight + bias


def pre(x, attention, feed_forward, first_norm, second_norm):
    hidden = attention(first_norm(x)) + x
    return hidden + feed_forward(second_norm(hidden))


def post(x, attention, feed_forward, first_norm, second_norm):
    hidden = first_norm(attention(x) + x)
    return second_norm(hidden + feed_forward(hidden))


def same_norm(x, attention, feed_forward, first_norm, second_norm):
    for sublayer in (attention, feed_forward):
        x = x + sublayer(first_norm(x))
    return x


def halves(features, positions, sign=-1, exponent=1.0):
    """The usual way of writing it: rotate_half and doubled angles."""
    width = features.shape[-1]
    steps = torch.arange(0, width, 2) / width
    angles = torch.outer(positions.float(), 10000.0 ** (-exponent * steps))
    angles = angles.repeat(1, 2)
    left, right = features.chunk(2, dim=-1)
    half = torch.cat((sign * right, left), dim=-1)
    return features * angles.cos() + half * angles.sin()


def neighbours(features, positions):
    width = features.shape[-1]
    steps = torch.arange(0, width, 2) / width
    angles = positions[:, None] * 10000.0**-steps
    pairs = torch.view_as_complex(features.unflatten(-1, (-1, 2)))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def count(d_model, d_ff):
    block = nn.TransformerEncoderLayer(d_model, 1, d_ff)
    return sum(parameter.numel() for parameter in block.parameters())


test_an_answer_gets_its_verdict = verdicts(
    {
        "07-encoding": [
            ([0.841, 0.540, 0.010, 1.000], RIGHT),
            (np.array([0.8415, 0.5403, 0.01, 0.99995]), RIGHT),
            ([0.01745, 0.99985, 0.00017, 1.0], "in degrees"),
            ([0.8415, 0.5403], "shape is (2,), not (4,)"),
        ],
        "07-shift": [
            (shift, RIGHT),
            (lambda steps, frequency: shift(steps, frequency).T, "back to p"),
            (mirror, "same sign"),
            (lambda steps, frequency: steps * frequency, "shape"),
        ],
        "07-layer-norm": [
            (norm_by_torch, RIGHT),
            (norm_by_numpy, RIGHT),
            (whole_sentence, "a whole sentence"),
            (in_place, "changes its argument x"),
        ],
        "07-pre-norm": [
            (pre, RIGHT),
            (post, "This is post-norm"),
            (same_norm, "first_norm twice"),
        ],
        "07-halves": [
            (halves, RIGHT),
            (neighbours, "You turn neighbours"),
            (lambda x, p: halves(x, -p), "wrong way round"),
            (lambda x, p: halves(x, p, sign=1), "needs a minus"),
            (lambda x, p: halves(x, p, exponent=0.0), "same frequency"),
            (lambda x, p: halves(x, p, exponent=0.5), "of pair i is 2i / wid"),
        ],
        "07-parameters": [
            (count, RIGHT),
            (lambda d, h: count(d, h) - 2 * d, "two norms"),
            (lambda d, h: count(d, h) - 4 * d, "The two norms have"),
            (lambda d, h: 4 * d * d + 2 * d * h, "These are the matrices"),
        ],
        "07-twins": [
            (("the dog chases the cat", "the cat chases the dog"), RIGHT),
            (["The bird sees the fish.", "the fish sees the bird"], RIGHT),
            (("the dog eats a cat", "a cat sees the dog"), "has 'eats'"),
            (("the dog sees a cat", "a cat sees the the dog"), "same words."),
            (("the dog chases the cat",) * 2, "are the same"),
            (("the dog", "dog the"), "a subject, a verb and an object"),
            (("the dog bites a cat", "a cat bites the dog"), "word 'bites'"),
            ("the dog chases the cat", "two sentences"),
        ],
    }
)
