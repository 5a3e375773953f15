"""What is refused, and that the refusal says what would be right."""

import math

import numpy as np
import pytest
import torch

from attention_lib import _checks


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ((), "finite"),
        ((0.5,), "at least 0.5 and finite"),
        ((0.0, 1.0), "between 0 and 1"),
        ((-2.5, 0.0), "between -2.5 and 0"),
    ],
)
def test_a_number_beyond_its_limits_hears_both(limits, wanted):
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=rf"^p must be {wanted}, got"):
            _checks.check_number("p", number, *limits)
    for limit in limits:
        _checks.check_number("p", limit, *limits)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_an_axis_is_one_of_those_there_are(rank):
    for axis in range(-rank, rank):
        _checks.check_axis("dim", axis, rank)
    with pytest.raises(ValueError, match=f"dim must be at least -{rank}"):
        _checks.check_axis("dim", -rank - 1, rank)
    with pytest.raises(ValueError, match=f"dim must be one of {rank} axes"):
        _checks.check_axis("dim", rank, rank)


def test_a_number_alone_has_one_axis_as_in_pytorch():
    """``torch.softmax(torch.tensor(1.0), 0)`` works."""
    _checks.check_axis("dim", 0, 0)
    _checks.check_axis("dim", -1, 0)
    for axis in (1, -2):
        with pytest.raises(ValueError, match="dim must be"):
            _checks.check_axis("dim", axis, 0)


def test_an_array_has_any_number_of_axes_unless_told():
    assert _checks.check_array("x", 1.5).shape == ()
    with pytest.raises(ValueError, match=r"x must have at least 1 axes"):
        _checks.check_array("x", 1.5, 1)
    whole = _checks.check_array("x", np.arange(3, dtype=np.int8))
    assert whole.dtype == np.float64


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.zeros(1), "floating-point"),
        (torch.zeros(1, dtype=torch.bool), "boolean"),
        (torch.zeros(1, dtype=torch.uint8), "whole"),
    ],
)
def test_a_tensor_is_of_one_kind(tensor, kind):
    _checks.check_tensor("x", tensor, kind)
    for other in {"floating-point", "boolean", "whole"} - {kind}:
        words = rf"x must hold {other} numbers, got {tensor.dtype}"
        with pytest.raises(TypeError, match=words):
            _checks.check_tensor("x", tensor, other)
        with pytest.raises(TypeError, match="got torch\\.complex64"):
            _checks.check_tensor("x", tensor.to(torch.complex64), other)


@pytest.mark.parametrize(
    ("axes", "fitting", "others"),
    [
        ("(B,)", [(2,)], [(), (2, 3)]),
        ("(B, T)", [(2, 3)], [(2,), (2, 3, 4)]),
        ("(..., T)", [(2,), (2, 3)], [()]),
        ("(..., T, d)", [(2, 3), (2, 3, 4)], [(2,)]),
    ],
)
def test_the_axes_of_a_tensor_are_counted(axes, fitting, others):
    for shape in fitting:
        _checks.check_tensor("x", torch.zeros(shape), "floating-point", axes)
    for shape in others:
        with pytest.raises(ValueError, match="x must have shape"):
            _checks.check_tensor(
                "x", torch.zeros(shape), "floating-point", axes
            )


def test_whole_numbers_of_numpy_are_whole_numbers():
    _checks.check_sizes(size=np.int64(3))
    _checks.check_items("lengths", np.array([1, 2]), int, "integers")
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        _checks.check_sizes(size=np.int32(0))
    for wrong in (np.array([1.5]), np.array([True])):
        with pytest.raises(TypeError, match="lengths must hold integers"):
            _checks.check_items("lengths", wrong, int, "integers")
