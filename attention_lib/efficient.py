# Written by tools/export.py from these cells, to be edited there:
# 08_efficiency.ipynb
"""What attention costs less: blocks of scores, and scores of low rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attention_lib import _blockwise
from attention_lib._checks import check_attention, check_sizes
from attention_lib._numerics import hide_unseen, no_autocast, widen

__all__ = [
    "blockwise_attention",
    "linear_attention",
    "online_softmax",
]


def online_softmax(
    blocks: Iterable[tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Mix values by the softmax of their scores, block after block.

    ``blocks`` yields scores ``(..., Tq, n)`` with the values ``(..., n, d_v)``
    of the same keys, in any order and of any size ``n``, at least once.
    Returns the context ``(..., Tq, d_v)`` and the logarithm of the sum of all
    exponentials ``(..., Tq, 1)``. A row whose scores are all minus infinity
    gets the context 0.

    Source: Milakov and Gimelshein (2018), algorithm 3; Rabe and Staats
    (2021).

    >>> scores = torch.tensor([[2.0, 1.0, 8.0, 4.0]]).log()
    >>> values = torch.tensor([[10.0], [40.0], [5.0], [20.0]])
    >>> online_softmax(zip(scores.split(2, -1), values.split(2)))[0]
    tensor([[12.]])

    Built in section 8.3 (sec-online-softmax).
    """
    largest: Any = -torch.inf  # of no key
    total: Any = 0.0
    mixed: Any = 0.0
    for scores, values in blocks:
        higher = scores.amax(-1, keepdim=True).clamp(min=largest)
        unit = higher.masked_fill(higher == -torch.inf, 0.0)  # no key yet
        weights = (scores - unit).exp()
        shrink = (largest - unit).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + weights @ values
        largest = higher
    dead = total == 0
    context = (mixed / total.masked_fill(dead, 1.0)).masked_fill(dead, 0.0)
    return context, largest + total.log()


def blockwise_attention(
    query: Float[Tensor, "*_ Tq d_k"],
    key: Float[Tensor, "*_ Tk d_k"],
    value: Float[Tensor, "*_ Tk d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    window: int | None = None,
    block_size: int = 512,
) -> tuple[Float[Tensor, "... Tq d_v"], None]:
    """Attend like ``scaled_dot_product_attention``, block by block.

    Memory grows with the lengths and not with their product, in the backward
    pass too, and blocks that nobody may see are skipped (those of a ``mask``
    on a CPU only). ``window`` hides keys that many positions away, as
    ``sliding_window_mask`` does; a block has at most ``block_size`` keys and
    as many queries. There are first derivatives only. Raises ValueError for
    ``need_weights`` and ``dropout_p``: no weights are kept.

    Source: Dao et al. (2022), algorithm 1 and appendix B.

    >>> x = torch.zeros(3, 2)
    >>> blockwise_attention(x, x, torch.eye(3), is_causal=True, window=2)[0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.5000, 0.5000]])

    Built in section 8.3 (sec-online-softmax).
    """
    _blockwise.refuse_weights(need_weights, dropout_p)
    inputs = query, key, value, bias, mask, scale
    context = _blockwise.attend_in_blocks(
        *inputs, is_causal, window, block_size
    )
    return context, None


def linear_attention(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    value: Float[Tensor, "*#batch Tk d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    chunk_size: int = 128,
) -> Float[Tensor, "... Tq d_v"]:
    """Attend with scores of low rank, in time linear in the length.

    ``f(q) · f(k)`` with ``f(x) = elu(x) + 1`` replaces ``exp(q · k)``, so the
    sum over the keys is done before a query is known. ``mask``, True = may
    be attended, is the same for all queries, ``(..., 1, Tk)``; a query that
    may see no key gets 0. ``chunk_size`` queries go together if
    ``is_causal``. Half types are summed in float32. Raises ValueError for a
    mask that differs between queries.

    Source: Katharopoulos et al. (2020), equations 4 to 12.

    >>> x = torch.zeros(2, 3)
    >>> linear_attention(x, x, torch.eye(2), is_causal=True)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])

    Built in section 8.8 (sec-low-rank).
    """
    check_sizes(chunk_size=chunk_size)
    mask, _ = check_attention(query, key, value, mask, is_causal=is_causal)
    mask, dtype = _blockwise.one_row(mask), query.dtype
    if mask is not None:
        key, value = hide_unseen(key, value, mask)
    query, key, value = widen(query), widen(key), widen(value)
    # elu(x) + 1, without the sum that rounds small numbers to 0.
    query, key = (x.relu() + x.clamp(max=0).exp() for x in (query, key))
    if mask is not None:
        key = torch.where(mask.mT, key, 0.0)
    # A feature of ones makes the sum of the weights ride along.
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    with no_autocast(query.device):
        if is_causal:
            sums = _running_sums(query, key, value, chunk_size)
        else:
            sums = query @ (key.mT @ value)
    context, total = sums[..., :-1], sums[..., -1:]
    return (context / total.masked_fill(total == 0, 1.0)).to(dtype)


def _running_sums(
    query: Tensor, key: Tensor, value: Tensor, chunk_size: int
) -> Tensor:
    """Carry the sum over earlier keys from chunk to chunk of queries."""
    extra = key.shape[-2] - query.shape[-2]  # the last ones belong together
    if extra < 0:  # the first queries see nothing
        key, value = (F.pad(x, (0, 0, -extra, 0)) for x in (key, value))
    early = max(extra, 0)
    state = key[..., :early, :].mT @ value[..., :early, :]
    aligned, sums = (query, key[..., early:, :], value[..., early:, :]), []
    chunks = (x.split(chunk_size, -2) for x in aligned)
    for queries, keys, values in zip(*chunks, strict=True):
        own = (queries @ keys.mT).tril() @ values
        sums.append(queries @ state + own)
        state = state + keys.mT @ values
    return torch.cat(sums, -2)
