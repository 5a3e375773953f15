# Written by tools/export.py from these cells, to be edited there:
# 07_transformer.ipynb
"""Where a token stands: sinusoidal, learned and rotary positions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_lib._checks import (
    check_number,
    check_sizes,
    check_tensor,
    check_type,
    check_width,
)

__all__ = [
    "LearnedPositions",
    "SinusoidalPositions",
    "rotate",
    "sinusoidal_encoding",
]


def _angles(
    name: str, positions: Tensor, width: int, base: float, dtype: torch.dtype
) -> Tensor:
    """Return position times frequency for each pair of features."""
    check_number("base", base, low=1e-9)
    if width < 2 or width % 2:
        raise ValueError(
            f"{name} must be of even width, one sine and one cosine for each "
            f"frequency; got {width}"
        )
    # Half precision cannot even count: bfloat16 has no 257.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=wide)
    frequencies = torch.exp(-math.log(base) * pairs / width)
    return positions.to(wide)[..., None] * frequencies


def sinusoidal_encoding(
    positions: Int[Tensor, "*batch T"],
    d_model: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*batch T d_model"]:
    """Describe each position by sines and cosines of many wavelengths.

    Features ``2i`` and ``2i + 1`` of position ``p`` are the sine and cosine
    of ``p / base ** (2i / d_model)``.

    Args:
        positions: Numbers of the positions, ``(..., T)``.
        d_model: Number of features, even.
        base: The longest wavelength is nearly ``2 pi * base`` positions.
        dtype: Type of the result. Angles are never computed in half
            precision.

    Returns:
        The encoding, ``(..., T, d_model)``, between -1 and 1.

    Raises:
        ValueError: If ``d_model`` is odd.

    References:
        Vaswani et al. (2017), section 3.5.

    Example:
        >>> sinusoidal_encoding(torch.tensor([0, 1]), 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])

    Built in :ref:`section 7.2 <sec-position>`.
    """
    check_tensor("positions", positions, "whole", "(..., T)")
    check_sizes(d_model=d_model)
    check_type("dtype", dtype, torch.dtype, "a torch.dtype")
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be floating-point, got {dtype}")
    angles = _angles("d_model", positions, d_model, base, dtype)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(dtype)


class SinusoidalPositions(nn.Module):
    """Add a :func:`sinusoidal_encoding` to features. Nothing is learned.

    Args:
        d_model: Width of the features, even.
        base: See :func:`sinusoidal_encoding`.

    References:
        Vaswani et al. (2017), section 3.5.

    Example:
        >>> SinusoidalPositions(4)(torch.zeros(1, 2, 4), offset=1)[0, 0]
        tensor([0.8415, 0.5403, 0.0100, 0.9999])

    Built in :ref:`section 7.2 <sec-position>`.
    """

    def __init__(self, d_model: int, *, base: float = 10000.0) -> None:
        super().__init__()
        check_sizes(d_model=d_model)
        _angles("d_model", torch.arange(0), d_model, base, torch.float32)
        self.d_model, self.base = d_model, base

    def forward(
        self, features: Float[Tensor, "B T d_model"], *, offset: int = 0
    ) -> Float[Tensor, "B T d_model"]:
        """Add the encodings of the positions ``offset``, ``offset + 1``, …

        Args:
            features: ``(B, T, d_model)``.
            offset: Number of positions that came before.
        """
        check_width("features", features, self.d_model, "(B, T, d_model)")
        check_sizes(0, offset=offset)
        positions = torch.arange(features.shape[1], device=features.device)
        return features + sinusoidal_encoding(
            positions + offset,
            self.d_model,
            base=self.base,
            dtype=features.dtype,
        )


class LearnedPositions(nn.Module):
    """Add one learned vector for each position, up to a largest length.

    Args:
        max_length: Number of positions in the table.
        d_model: Width of the features.

    References:
        Gehring et al. (2017), section 3.1.

    Example:
        >>> positions = LearnedPositions(5, 4)
        >>> positions(torch.zeros(1, 2, 4)).shape
        torch.Size([1, 2, 4])

    Built in :ref:`section 7.3 <sec-rotary>`.
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        check_sizes(max_length=max_length, d_model=d_model)
        self.table = nn.Embedding(max_length, d_model)

    def forward(
        self, features: Float[Tensor, "B T d_model"], *, offset: int = 0
    ) -> Float[Tensor, "B T d_model"]:
        """Add the rows ``offset``, ``offset + 1``, … of the table.

        Args:
            features: ``(B, T, d_model)``.
            offset: Number of positions that came before.

        Raises:
            ValueError: If a position lies beyond the table.
        """
        width = self.table.embedding_dim
        check_width("features", features, width, "(B, T, d_model)")
        check_sizes(0, offset=offset)
        end = offset + features.shape[1]
        if end > self.table.num_embeddings:
            raise ValueError(
                f"position {end - 1} is beyond the table of max_length="
                f"{self.table.num_embeddings} positions; a learned table "
                "has no row for a position it was not built for"
            )
        return features + self.table.weight[offset:end]


def rotate(
    features: Float[Tensor, "*batch T width"],
    positions: Int[Tensor, "*#batch T"],
    *,
    base: float = 10000.0,
) -> Float[Tensor, "*batch T width"]:
    """Turn each pair of features by an angle that grows with the position.

    Features ``2i`` and ``2i + 1`` are the two coordinates of a plane, and
    position ``p`` turns it by ``p / base ** (2i / width)``. Lengths stay,
    and the dot product of two turned vectors depends on their positions
    through the difference alone.

    Args:
        features: Queries or keys of a head, ``(..., T, width)``.
        positions: Numbers of the positions, ``(T,)`` or ``(..., T)``.
        base: Sets the slowest rotation.

    Returns:
        The turned features, in the type of ``features``.

    Raises:
        ValueError: If the width is odd.

    References:
        Su et al. (2024), RoFormer, equations 14 to 16 and 34.

    Example:
        >>> rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
        tensor([[0.5403, 0.8415]])

    Built in :ref:`section 7.3 <sec-rotary>`.
    """
    check_tensor("features", features, "floating-point", "(..., T, width)")
    check_tensor("positions", positions, "whole", "(..., T)")
    places = features.shape[-positions.dim() - 1 : -1]
    if (
        positions.dim() >= features.dim()
        or positions.shape[-1] != features.shape[-2]
        or any(
            size not in (1, place)
            for size, place in zip(positions.shape, places, strict=True)
        )
    ):
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} do not fit "
            f"features of shape {tuple(features.shape)}"
        )
    width = features.shape[-1]
    angles = _angles("features", positions, width, base, features.dtype)
    sine, cosine = angles.sin(), angles.cos()
    first, second = features[..., 0::2], features[..., 1::2]
    turned = torch.stack(
        [first * cosine - second * sine, first * sine + second * cosine], -1
    )
    return turned.flatten(-2).to(features.dtype)
