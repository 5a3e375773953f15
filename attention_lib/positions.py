# Written by tools/export.py from these cells, to be edited there:
# 07_transformer.ipynb
"""Where a token stands: sinusoidal, learned and rotary positions."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib._models import check_frequencies, check_places

__all__ = [
    "LearnedPositions",
    "RotaryPositions",
    "SinusoidalPositions",
    "count_positions",
    "sinusoidal_encoding",
]


def _angles(
    positions: Tensor, width: int, base: float, dtype: torch.dtype
) -> Tensor:
    """Return position times frequency, one column for each pair."""
    # Half precision cannot even count: bfloat16 has no 257.
    wide = torch.promote_types(dtype, torch.float32)
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=wide)
    return positions.to(wide)[..., None] * base ** (pairs / -width)


def sinusoidal_encoding(
    positions: Int[Tensor, "*batch T"],
    d_model: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*batch T d_model"]:
    """Describe positions ``(..., T)`` by sines and cosines of many lengths.

    Features ``2i`` and ``2i + 1`` of position ``p`` are the sine and cosine
    of ``p / base ** (2i / d_model)``. Angles are never computed in half
    precision, whatever ``dtype`` is. Returns ``(..., T, d_model)``. Raises
    ValueError for an odd ``d_model``.

    Source: Vaswani et al. (2017), section 3.5.

    >>> sinusoidal_encoding(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])

    Built in section 7.2 (sec-position).
    """
    check_frequencies("d_model", d_model, base)
    angles = _angles(positions, d_model, base, dtype)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(dtype)


class SinusoidalPositions(nn.Module):
    """Add a ``sinusoidal_encoding`` to features; nothing is learned.

    The features ``(B, T, d_model)`` come with positions ``(T,)`` or
    ``(B, T)``, which are 0 to T - 1 if omitted. Raises ValueError for an
    odd ``d_model``.

    >>> SinusoidalPositions(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])

    Built in section 7.2 (sec-position).
    """

    def __init__(self, d_model: int, *, base: float = 10000.0) -> None:
        super().__init__()
        check_frequencies("d_model", d_model, base)
        self.d_model, self.base = d_model, base

    def forward(
        self,
        features: Float[Tensor, "*batch T d_model"],
        positions: Int[Tensor, "*#batch T"] | None = None,
    ) -> Float[Tensor, "*batch T d_model"]:
        """Add to each feature vector the encoding of its position."""
        positions = check_places(positions, features)
        return features + sinusoidal_encoding(
            positions, self.d_model, base=self.base, dtype=features.dtype
        )


class LearnedPositions(nn.Module):
    """Add one learned vector for each position below ``max_length``.

    The features ``(B, T, d_model)`` come with positions ``(T,)`` or
    ``(B, T)``, which are 0 to T - 1 if omitted. Raises ValueError for a
    position beyond the table.

    Source: Gehring et al. (2017), section 3.1.

    >>> LearnedPositions(5, 4)(torch.zeros(1, 2, 4)).shape
    torch.Size([1, 2, 4])

    Built in section 7.3 (sec-rotary).
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, d_model)

    def forward(
        self,
        features: Float[Tensor, "*batch T d_model"],
        positions: Int[Tensor, "*#batch T"] | None = None,
    ) -> Float[Tensor, "*batch T d_model"]:
        """Add to each feature vector the row of its position."""
        rows = self.table.num_embeddings
        encoding: Tensor = self.table(check_places(positions, features, rows))
        return features + encoding


class RotaryPositions(nn.Module):
    """Turn each pair of features by an angle that grows with the position.

    A pair is the two coordinates of a plane, which position ``p`` turns by
    ``p / base ** (2i / d_head)``. Pair ``i`` is features ``2i`` and
    ``2i + 1``; with ``interleaved=False`` it is ``i`` and ``i + d_head / 2``,
    as in Llama's and GPT-NeoX's weights. The heads ``(B, H, T, d_head)``
    come with positions ``(T,)`` or ``(B, T)``. Raises ValueError for an odd
    ``d_head``.

    Source: Su et al. (2024), equations 14 to 16 and 34.

    >>> RotaryPositions(2)(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    tensor([[0.5403, 0.8415]])

    Built in section 7.3 (sec-rotary).
    """

    def __init__(
        self, d_head: int, *, base: float = 10000.0, interleaved: bool = True
    ) -> None:
        super().__init__()
        check_frequencies("d_head", d_head, base)
        self.d_head, self.base, self.interleaved = d_head, base, interleaved

    def forward(
        self,
        heads: Float[Tensor, "*batch T d_head"],
        positions: Int[Tensor, "*some T"],
    ) -> Float[Tensor, "*batch T d_head"]:
        """Turn the features of every head; the type stays."""
        check_places(positions, heads)
        angles = _angles(positions, self.d_head, self.base, heads.dtype)
        if positions.dim() > 1:  # (B, T) is the same for all heads
            angles = angles.unsqueeze(-3)
        cosine, sine = angles.cos(), angles.sin()
        if self.interleaved:
            first, second = heads[..., 0::2], heads[..., 1::2]
        else:
            first, second = heads.chunk(2, -1)
        turned = [
            first * cosine - second * sine,
            first * sine + second * cosine,
        ]
        if self.interleaved:
            return torch.stack(turned, -1).flatten(-2).to(heads.dtype)
        return torch.cat(turned, -1).to(heads.dtype)


def count_positions(
    tokens: Int[Tensor, "B T"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    cached: int = 0,
) -> Int[Tensor, "... T"]:
    """Say at which positions tokens stand if nobody does.

    They go on where the cache ends. Where a mask ``(B, 1, cached + T)`` shows
    padding on the left, each row counts from its first real token.

    >>> mask = torch.tensor([[[False, True, True]]])
    >>> count_positions(torch.tensor([[0, 5, 7]]), mask)
    tensor([[0, 0, 1]])

    Built in section 7.10 (sec-language-model).
    """
    rows, length = tokens.shape
    positions = torch.arange(cached, cached + length, device=tokens.device)
    if isinstance(mask, Tensor) and mask.shape == (rows, 1, cached + length):
        pads = (mask[:, 0].cumsum(-1) == 0).sum(-1, keepdim=True)
        positions = (positions - pads).clamp(min=0)
    return positions
