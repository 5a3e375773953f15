"""The oracle of all other tests, checked against sums written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import reference

ROW = st.lists(st.tuples(st.floats(-600, 600), st.booleans()), min_size=1)


@given(ROW)
def test_a_masked_softmax_is_the_quotient_of_the_kept_exponentials(row):
    scores, keep = map(np.array, zip(*row, strict=True))
    powers = [math.exp(score) * kept for score, kept in row]
    total = math.fsum(powers) or 1.0
    close = {"rtol": 1e-12, "atol": 1e-200}
    np.testing.assert_allclose(
        reference.softmax(scores, keep), [p / total for p in powers], **close
    )
    whole = math.fsum(map(math.exp, scores))
    np.testing.assert_allclose(
        reference.softmax(scores), np.exp(scores) / whole, **close
    )


@pytest.mark.parametrize("size", [1e3, 1e30, 1e300])
def test_scores_of_any_size_give_finite_weights(size):
    weights = reference.softmax([[size, size, -size], [-size, -size, -size]])
    np.testing.assert_array_equal(weights[0], [0.5, 0.5, 0.0])
    np.testing.assert_allclose(weights[1], [1 / 3] * 3)


def test_a_row_with_nothing_to_attend_to_is_all_zeros():
    scores, hidden = np.full((2, 2), 3.0), [[True, False], [False, False]]
    np.testing.assert_array_equal(
        reference.softmax(scores, hidden), [[1, 0], [0, 0]]
    )
    np.testing.assert_array_equal(reference.softmax([-np.inf] * 2), [0, 0])
    assert (scores == 3.0).all()
    for shape in [(0,), (2, 0), (0, 3)]:
        assert reference.softmax(np.zeros(shape)).shape == shape


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_the_axis_is_the_one_that_sums_to_one(axis):
    weights = reference.softmax(np.arange(24.0).reshape(2, 3, 4), axis=axis)
    np.testing.assert_allclose(weights.sum(axis=axis), 1.0)


def test_attention_is_the_sum_written_out():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    value = rng.normal(size=(2, 5, 6))
    mask = rng.random((2, 3, 5)) < 0.6
    mask[1, 2] = False
    for scale in (None, 1.0, 0.3):
        factor = 1 / math.sqrt(4) if scale is None else scale
        context, weights = reference.attention(query, key, value, mask, scale)
        for b, i in np.ndindex(2, 3):
            powers = {
                j: math.exp(factor * math.fsum(query[b, i] * key[b, j]))
                for j in range(5)
                if mask[b, i, j]
            }
            row = np.zeros(5)
            for j, power in powers.items():
                row[j] = power / math.fsum(powers.values())
            np.testing.assert_allclose(weights[b, i], row)
            np.testing.assert_allclose(
                context[b, i], sum(row[j] * value[b, j] for j in range(5))
            )


def test_the_worked_example_has_its_printed_digits():
    query = [[1, 0], [0, 1], [1, 1]]
    context, weights = reference.attention(
        query, query, [[1, 0], [0, 2], [1, 1]]
    )
    np.testing.assert_allclose(
        weights,
        [[0.401, 0.198, 0.401], [0.198, 0.401, 0.401], [0.248, 0.248, 0.503]],
        atol=6e-4,
    )
    np.testing.assert_allclose(
        context, [[0.802, 0.797], [0.599, 1.203], [0.752, 1.0]], atol=6e-4
    )


def test_numbers_are_rounded_when_they_come_in_and_never_again():
    half = torch.full((1, 80), 256.0, dtype=torch.float16)
    context, weights = reference.attention(half, half, half, scale=1.0)
    assert context.dtype == weights.dtype == np.float64
    np.testing.assert_array_equal(context, np.full((1, 80), 256.0))
    narrow = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for got, wanted in zip(
        reference.attention(narrow, narrow, narrow),
        reference.attention(*[narrow.astype(np.float64)] * 3),
        strict=True,
    ):
        assert np.array_equal(got, wanted)
