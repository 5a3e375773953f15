"""The oracle of all other tests, checked against sums written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import reference

row = st.lists(st.floats(-600, 600), min_size=1, max_size=6)


@given(row)
def test_softmax_is_the_quotient_of_exponentials(scores):
    exponentials = [math.exp(score) for score in scores]
    expected = [e / math.fsum(exponentials) for e in exponentials]
    np.testing.assert_allclose(
        reference.softmax(scores), expected, rtol=1e-12, atol=1e-300
    )


@given(row, st.data())
def test_a_masked_softmax_is_the_softmax_of_the_kept_scores(scores, data):
    keep = data.draw(
        st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))
    )
    weights = reference.softmax(scores, keep)
    kept = [score for score, kept in zip(scores, keep, strict=True) if kept]
    assert not weights[~np.array(keep)].any()
    if kept:
        np.testing.assert_allclose(
            weights[np.array(keep)], reference.softmax(kept)
        )


@pytest.mark.parametrize("size", [1e3, 1e30, 1e300])
def test_scores_of_any_size_give_finite_weights(size):
    weights = reference.softmax([[size, size, -size], [-size, -size, -size]])
    np.testing.assert_array_equal(weights[0], [0.5, 0.5, 0.0])
    np.testing.assert_allclose(weights[1], [1 / 3] * 3)


def test_a_row_with_nothing_to_attend_to_is_all_zeros():
    hidden = [[True, False], [False, False]]
    np.testing.assert_array_equal(
        reference.softmax([[3.0, 4.0], [3.0, 4.0]], hidden), [[1, 0], [0, 0]]
    )
    np.testing.assert_array_equal(reference.softmax([-np.inf] * 2), [0, 0])


def test_the_axis_is_the_one_that_sums_to_one():
    scores = np.arange(24.0).reshape(2, 3, 4)
    for axis in (0, 1, 2, -1):
        weights = reference.softmax(scores, axis=axis)
        np.testing.assert_allclose(weights.sum(axis=axis), 1.0)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_empty_scores_give_empty_weights(shape):
    assert reference.softmax(np.zeros(shape)).shape == shape


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
            kept = [j for j in range(5) if mask[b, i, j]]
            powers = {
                j: math.exp(factor * math.fsum(query[b, i] * key[b, j]))
                for j in kept
            }
            total = math.fsum(powers.values())
            expected = sum(
                (powers[j] / total * value[b, j] for j in kept), np.zeros(6)
            )
            np.testing.assert_allclose(context[b, i], expected)
            np.testing.assert_allclose(
                weights[b, i, kept], [powers[j] / total for j in kept]
            )
            assert weights[b, i].sum() == pytest.approx(float(bool(kept)))


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


def test_everything_is_computed_in_float64():
    half = torch.full((1, 80), 256.0, dtype=torch.float16)
    context, weights = reference.attention(half, half, half, scale=1.0)
    assert context.dtype == weights.dtype == np.float64
    np.testing.assert_array_equal(context, np.full((1, 80), 256.0))


def test_inputs_are_left_as_they_were():
    scores, mask = np.zeros((2, 2)), np.eye(2, dtype=bool)
    reference.softmax(scores, mask)
    assert not scores.any()
    np.testing.assert_array_equal(mask, np.eye(2))


@pytest.mark.plain
def test_a_mask_of_numbers_is_refused():
    with pytest.raises(TypeError, match=r"mask must be boolean.*float64"):
        reference.softmax([1.0, 2.0], [1.0, 0.0])


@pytest.mark.plain
def test_a_mask_may_not_enlarge_the_scores():
    with pytest.raises(ValueError, match=r"\(1, ?2\)"):
        reference.softmax([[1.0, 2.0]], np.ones((3, 2), dtype=bool))


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_numbers_of_any_precision_are_computed_in_float64(kind):
    """Rounded when they come in, and never again."""
    rng = np.random.default_rng(0)
    narrow = [rng.normal(size=(3, 4)).astype(kind) for _ in range(3)]
    wide = [part.astype(np.float64) for part in narrow]
    for got, wanted in zip(
        reference.attention(*narrow), reference.attention(*wide), strict=True
    ):
        assert got.dtype == np.float64
        assert np.array_equal(got, wanted)
    weights = reference.softmax(narrow[0])
    assert weights.dtype == np.float64
    assert np.array_equal(weights, reference.softmax(wide[0]))
