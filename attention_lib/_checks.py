"""Refusals that name the argument, what it got and what is right."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "check_array",
    "check_axis",
    "check_callable",
    "check_indices",
    "check_items",
    "check_lengths",
    "check_no_tangent",
    "check_number",
    "check_shapes",
    "check_sizes",
    "check_tensor",
    "check_type",
    "check_width",
]


def check_type(
    name: str, value: Any, kind: type | tuple[type, ...], what: str
) -> None:
    """Refuse a value that is not of this type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")


def check_items(
    name: str, items: Any, kind: type | tuple[type, ...], what: str
) -> list[Any]:
    """Refuse what is no collection of such items; return them in a list."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise TypeError(
            f"{name} must be a sequence of {what}, got {type(items).__name__}"
        )
    listed = list(items)
    kind = (int, np.integer) if kind is int else kind
    for item in listed:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise TypeError(f"{name} must hold {what}, got {item!r}")
    return listed


def check_sizes(least: int = 1, **sizes: Any) -> None:
    """Refuse what is no whole number, or less than the least."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(
            size, (int, np.integer, torch.SymInt)
        ):
            raise TypeError(f"{name} must be an int, got {size!r}")
        if size < least:
            raise ValueError(f"{name} must be at least {least}, got {size}")


def check_no_tangent(name: str, *tensors: Tensor) -> None:
    """Refuse forward-mode differentiation, which would find 0."""
    for tensor in tensors:
        dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
        if dual.tangent is not None:
            raise NotImplementedError(
                f"{name} has no derivative in forward mode, as jvp and "
                "jacfwd ask for; backward() goes the other way"
            )


def check_number(
    name: str,
    value: Any,
    low: float = -sys.float_info.max,
    high: float = sys.float_info.max,
) -> None:
    """Refuse what is no number, or NaN, or beyond the limits."""
    if isinstance(value, bool) or not isinstance(
        value, (int, float, torch.SymInt, torch.SymFloat)
    ):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not low <= value <= high:
        wanted = f"between {low:g} and {high:g}"
        if low == -sys.float_info.max:
            wanted = "finite"
        elif high == sys.float_info.max:
            wanted = f"at least {low:g} and finite"
        raise ValueError(f"{name} must be {wanted}, got {value}")


def check_tensor(name: str, value: Any, kind: str, axes: str = "") -> None:
    """Refuse what is no tensor of this kind of number, or has other axes.

    ``axes`` is written as in a docstring: ``"(B, T)"`` for two axes,
    ``"(..., T)"`` for one or more.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}"
        )
    own = "whole"
    if value.is_floating_point():
        own = "floating-point"
    elif value.is_complex():
        own = "complex"
    elif value.dtype == torch.bool:
        own = "boolean"
    if own != kind:
        raise TypeError(f"{name} must hold {kind} numbers, got {value.dtype}")
    rank = axes.count(",") + (not axes.endswith(",)"))
    more = axes.startswith("(...")
    if axes and not (value.dim() >= rank - 1 if more else value.dim() == rank):
        raise ValueError(
            f"{name} must have shape {axes}, got {tuple(value.shape)}"
        )


def check_width(name: str, value: Any, width: int, axes: str) -> None:
    """Refuse what is no tensor of features, or of features of other width."""
    check_tensor(name, value, "floating-point", axes)
    if value.shape[-1] != width:
        raise ValueError(
            f"{name} must have width {width}, got {tuple(value.shape)}"
        )


def check_indices(name: str, value: Any, size: int, axes: str) -> None:
    """Refuse what are no numbers from 0 to ``size - 1``.

    Values are looked at where that is cheap: on the CPU, not while a
    compiler traces.
    """
    check_tensor(name, value, "whole", axes)
    if (
        value.device.type == "cpu"
        and value.numel()
        and not torch.compiler.is_compiling()
    ):
        low, high = (int(end) for end in value.aminmax())
        if low < 0 or high >= size:
            raise ValueError(
                f"{name} must hold numbers from 0 to {size - 1}, got "
                f"{low if low < 0 else high}"
            )


def check_lengths(
    name: str, value: Any, shape: torch.Size, least: int = 0
) -> None:
    """Refuse lengths that do not fit rows ``(B, T)``."""
    check_indices(name, value, shape[1] + 1, "(B,)")
    if len(value) != shape[0]:
        raise ValueError(
            f"{name} must hold one length for each of {shape[0]} rows, got "
            f"{len(value)}"
        )
    if least and value.device.type == "cpu" and bool((value < least).any()):
        raise ValueError(
            f"{name} must be at least {least}, got {int(value.min())}"
        )


def check_axis(name: str, value: Any, rank: int) -> None:
    """Refuse what is not the number of an axis."""
    check_sizes(-max(rank, 1), **{name: value})
    if value >= max(rank, 1):
        raise ValueError(f"{name} must be one of {rank} axes, got {value}")


def check_array(name: str, value: Any, least: int = 0) -> NDArray[np.float64]:
    """Return numbers as a float64 array; refuse what are none."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must not be ragged") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(
            f"{name} must hold real numbers, got {type(value).__name__} of "
            f"{array.dtype}"
        )
    if array.ndim < least:
        raise ValueError(
            f"{name} must have at least {least} axes, got shape {array.shape}"
        )
    return array.astype(np.float64)


def check_shapes(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> None:
    """Refuse shapes of query, key and value that do not belong together."""
    if query[-1] != key[-1]:
        raise ValueError(
            f"query and key must be equally wide, got {query} and {key}"
        )
    if key[-2] != value[-2]:
        raise ValueError(
            f"key and value must be equally long, got {key} and {value}"
        )
    try:
        np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    except ValueError:
        raise ValueError(
            "the leading axes of query, key and value must broadcast, got "
            f"{query}, {key} and {value}"
        ) from None
