# Written by tools/export.py from these cells, to be edited there:
# 05_masking.ipynb, 08_efficiency.ipynb
"""Masks with one meaning: boolean, True = may be attended.

They broadcast against the scores ``(..., Tq, Tk)`` and combine with ``&``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Integer, Shaped
from torch import Tensor

from attention_lib._checks import (
    check_keep,
    check_row_lengths,
    check_sizes,
    check_tensor,
)

__all__ = [
    "block_sparse_mask",
    "causal_mask",
    "document_mask",
    "from_attention_mask",
    "padding_mask",
    "sliding_window_mask",
]


def padding_mask(
    lengths: Integer[Tensor, " B"] | Sequence[int],
    max_length: int | None = None,
    *,
    side: Literal["right", "left"] = "right",
) -> Bool[Tensor, "B 1 Tk"]:
    """Hide the pads of a batch from every query: ``(B, 1, Tk)``.

    ``lengths`` counts the real tokens of each row; ``Tk`` is ``max_length``,
    the longest of them if omitted. The pads stand on the given ``side``.
    Raises TypeError or ValueError for what cannot be lengths.

    >>> padding_mask([2, 3], 4).int()
    tensor([[[1, 1, 0, 0]],
    <BLANKLINE>
            [[1, 1, 1, 0]]], dtype=torch.int32)

    Built in section 5.3 (sec-one-meaning).
    """
    lengths, max_length = check_row_lengths(lengths, max_length, side)
    position = torch.arange(max_length, device=lengths.device)
    if side == "left":
        position = position.flip(0)
    return position < lengths[:, None, None]


def from_attention_mask(
    attention_mask: Shaped[Tensor, "B T"],
) -> Bool[Tensor, "B 1 T"]:
    """Read a mask ``(B, T)`` in which 1 or True keeps a token.

    This is the ``attention_mask`` of Hugging Face's models. Returns
    ``(B, 1, T)``. Raises ValueError for another shape, or numbers other than
    0 and 1.

    >>> from_attention_mask(torch.tensor([[0, 1, 1]]))
    tensor([[[False,  True,  True]]])

    Built in section 5.3 (sec-one-meaning).
    """
    check_keep(attention_mask)
    return attention_mask.bool()[:, None]


def causal_mask(
    query_length: int,
    key_length: int | None = None,
    *,
    offset: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "Tq Tk"]:
    """Let each query see its own position and those before it.

    Query ``i`` sees the keys ``j <= i + offset``. By default the last query
    stands beside the last key, ``offset = Tk - Tq``, which is right when the
    first keys come from a cache. Raises TypeError or ValueError for what is
    no length.

    >>> causal_mask(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)

    Built in section 5.3 (sec-one-meaning).
    """
    if key_length is None:
        key_length = query_length
    check_sizes(0, query_length=query_length, key_length=key_length)
    if offset is None:
        offset = key_length - query_length
    everything = torch.ones(
        query_length, key_length, dtype=torch.bool, device=device
    )
    return everything.tril(offset)


def sliding_window_mask(
    query_length: int,
    key_length: int | None = None,
    *,
    window: int,
    offset: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "Tq Tk"]:
    """Let each query see the keys less than ``window`` positions away.

    Query ``i`` stands beside key ``i + offset``, by default the last beside
    the last. Together with ``causal_mask`` it sees the last ``window`` keys,
    its own among them. Raises TypeError or ValueError for what is no length,
    or a window below 1.

    Source: Beltagy et al. (2020), "Longformer", section 3.1.

    >>> (sliding_window_mask(3, window=2) & causal_mask(3)).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)

    Built in section 8.7 (sec-sparse).
    """
    check_sizes(window=window)
    if key_length is None:
        key_length = query_length
    if offset is None:
        offset = key_length - query_length
    near, far = (
        causal_mask(query_length, key_length, offset=edge, device=device)
        for edge in (offset + window - 1, offset - window)
    )
    return near & ~far


def block_sparse_mask(
    layout: Bool[Tensor, "rows columns"],
    block_size: int,
    query_length: int | None = None,
    key_length: int | None = None,
) -> Bool[Tensor, "Tq Tk"]:
    """Blow up a small table of blocks, each square, to a mask.

    ``layout`` is True where the queries of a row of blocks may see the keys
    of a column. The lengths cut the mask where the last blocks stand out.

    Source: Child et al. (2019); Zaheer et al. (2020), "Big Bird".

    >>> layout = torch.tensor([[True, False], [True, True]])
    >>> block_sparse_mask(layout, 2, 3, 4).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 1]], dtype=torch.int32)

    Built in section 8.7 (sec-sparse).
    """
    rows = layout.repeat_interleave(block_size, 0)[:query_length]
    return rows.repeat_interleave(block_size, 1)[:, :key_length]


def document_mask(ids: Integer[Tensor, "*B T"]) -> Bool[Tensor, "*B T T"]:
    """Keep documents that are packed into one row from seeing each other.

    ``ids`` ``(B, T)`` holds for each position the number of its document;
    the mask is ``(B, T, T)``. Positions should restart with each document.
    Raises TypeError for ids that are not whole numbers.

    >>> document_mask(torch.tensor([7, 7, 8])).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)

    Built in section 8.7 (sec-sparse).
    """
    check_tensor("ids", ids, "whole", "(..., T)")
    return ids[..., :, None] == ids[..., None, :]
