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

from attention_lib._checks import check_keep, check_row_lengths, check_sizes

__all__ = [
    "block_sparse_mask",
    "causal_mask",
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

    Built in :ref:`section 5.3 <sec-one-meaning>`.
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

    Built in :ref:`section 5.3 <sec-one-meaning>`.
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

    Built in :ref:`section 5.3 <sec-one-meaning>`.
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

    The query ``i`` stands beside the key ``i + offset``. Together with
    :func:`~attention_lib.masks.causal_mask` it sees the last ``window``
    keys, its own among them.

    Args:
        query_length: number of queries ``Tq``.
        key_length: number of keys ``Tk``; ``Tq`` if omitted.
        window: how far, 1 for the query's own key only.
        offset: how many keys lie before the first query; ``Tk - Tq`` if
            omitted.
        device: where to create the mask.

    Returns:
        Boolean mask ``(Tq, Tk)``, ``True`` where attention is allowed.

    Raises:
        TypeError: if a number is not an int.
        ValueError: if a length is negative or ``window`` below 1.

    References:
        Beltagy, Peters and Cohan (2020), "Longformer", section 3.1.

    Example:
        >>> (sliding_window_mask(4, window=2) & causal_mask(4)).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Built in :ref:`section 8.7 <sec-sparse>`.
    """
    check_sizes(window=window)
    below = causal_mask(query_length, key_length, offset=offset, device=device)
    if offset is None:
        offset = below.shape[1] - below.shape[0]
    everything = torch.ones_like(below)
    return everything.tril(offset + window - 1).triu(offset - window + 1)


def block_sparse_mask(
    layout: Bool[Tensor, "rows columns"],
    block_size: int,
    query_length: int | None = None,
    key_length: int | None = None,
) -> Bool[Tensor, "Tq Tk"]:
    """Blow up a small table of blocks to a mask.

    Args:
        layout: ``True`` where the queries of a row of blocks may see the
            keys of a column of blocks.
        block_size: number of queries, and of keys, in a block.
        query_length: cut the mask to ``Tq`` queries; all if omitted.
        key_length: cut it to ``Tk`` keys; all if omitted.

    Returns:
        Boolean mask ``(Tq, Tk)``. It is dense: what saves time is a
        function that skips blocks, as :func:`blockwise_attention` does on
        a CPU.

    Raises:
        TypeError: if ``layout`` is not boolean or a number not an int.
        ValueError: if ``layout`` is not two-dimensional or too small.

    References:
        Child et al. (2019), "Sparse Transformers"; Zaheer et al. (2020),
        "Big Bird".

    Example:
        >>> layout = torch.tensor([[True, False], [True, True]])
        >>> block_sparse_mask(layout, 2, 4, 3).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [1, 1, 1],
                [1, 1, 1]], dtype=torch.int32)

    Built in :ref:`section 8.7 <sec-sparse>`.
    """
    if not isinstance(layout, Tensor) or layout.dtype != torch.bool:
        raise TypeError(
            "layout must be a boolean tensor (True = may be attended), got "
            f"{getattr(layout, 'dtype', type(layout).__name__)}"
        )
    if layout.dim() != 2:
        raise ValueError(
            "layout must be two-dimensional (rows, columns of blocks), got "
            f"shape {tuple(layout.shape)}"
        )
    check_sizes(block_size=block_size)
    wanted = []
    for name, length, blocks in (
        ("query_length", query_length, layout.shape[0]),
        ("key_length", key_length, layout.shape[1]),
    ):
        room = blocks * block_size
        if length is not None:
            check_sizes(**{name: length})
            if length > room:
                raise ValueError(
                    f"{name}={length} is more than the {room} positions of "
                    f"{blocks} blocks of {block_size}"
                )
        wanted.append(room if length is None else length)
    mask = layout.repeat_interleave(block_size, 0)[: wanted[0]]
    return mask.repeat_interleave(block_size, 1)[:, : wanted[1]]
