# Written by tools/export.py from these cells, to be edited there:
# 05_masking.ipynb, 08_efficiency.ipynb
"""Masks with one meaning: boolean, ``True`` = may be attended.

Masks broadcast against the scores ``(..., Tq, Tk)`` and combine with
``&``. The converters translate to and from the two opposite conventions
of PyTorch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Integer, Shaped
from torch import Tensor

from attention_lib._checks import check_items, check_sizes, check_type

__all__ = [
    "block_sparse_mask",
    "causal_mask",
    "from_key_padding_mask",
    "from_mha_mask",
    "from_sdpa_mask",
    "padding_mask",
    "sliding_window_mask",
    "to_key_padding_mask",
    "to_mha_mask",
    "to_sdpa_mask",
]


def _check_bool(name: str, mask: Tensor) -> None:
    """Refuse anything but a boolean tensor, and say how to convert it."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{name} must be a boolean tensor, got {type(mask).__name__}"
        )
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be boolean (True = may be attended), got "
            f"{mask.dtype}. Convert a 0/1 mask with mask.bool(), an "
            "additive 0/-inf mask with from_sdpa_mask(mask)."
        )


def padding_mask(
    lengths: Integer[Tensor, " B"] | Sequence[int],
    max_length: int | None = None,
    *,
    side: Literal["right", "left"] = "right",
) -> Bool[Tensor, "B 1 Tk"]:
    """Mark the real tokens of a padded batch.

    The mask blocks *key* columns: no query may look at a pad. The axis of
    length 1 stands for the queries, so that the mask broadcasts against
    scores ``(B, Tq, Tk)``; for scores with a head axis, insert one:
    ``mask[:, None]``.

    Args:
        lengths: number of real tokens of each sequence, ``(B,)``.
        max_length: padded length ``Tk``; the longest length if omitted.
            Give it inside ``torch.compile``, where values are not known.
        side: on which side the *padding* is.

    Returns:
        Boolean mask ``(B, 1, Tk)``, ``True`` at real tokens.

    Raises:
        TypeError: if ``lengths`` does not hold integers.
        ValueError: if ``lengths`` is not one-dimensional, holds a negative
            number or one above ``max_length``, or ``side`` is unknown.

    Example:
        >>> padding_mask([2, 3], 4).int()
        tensor([[[1, 1, 0, 0]],
        <BLANKLINE>
                [[1, 1, 1, 0]]], dtype=torch.int32)

    Built in :ref:`section 5.3 <sec-one-meaning>`.
    """
    if not isinstance(lengths, Tensor):
        whole = check_items("lengths", lengths, int, "integers")
        lengths = torch.tensor(whole, dtype=torch.long)
    if (
        lengths.dtype == torch.bool
        or lengths.is_floating_point()
        or lengths.is_complex()
    ):
        raise TypeError(
            f"lengths must hold integers, got {lengths.dtype}; "
            "did you pass a mask instead of lengths?"
        )
    if lengths.dim() != 1:
        raise ValueError(
            "lengths must be one-dimensional (B,), got shape "
            f"{tuple(lengths.shape)}; did you pass token ids?"
        )
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', got {side!r}")
    if max_length is None:
        max_length = int(lengths.max()) if len(lengths) else 0
    check_sizes(0, max_length=max_length)
    if len(lengths) and not torch.compiler.is_compiling():
        shortest, longest = (int(end) for end in lengths.aminmax())
        if shortest < 0:
            raise ValueError(f"lengths must be at least 0, got {shortest}")
        if longest > max_length:
            raise ValueError(
                f"lengths reach {longest}, above max_length={max_length}"
            )
    position = torch.arange(max_length, device=lengths.device)
    if side == "left":
        position = position.flip(0)
    return position < lengths[:, None, None]


def causal_mask(
    query_length: int,
    key_length: int | None = None,
    *,
    offset: int | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "Tq Tk"]:
    """Let each query see its own position and those before it.

    Query ``i`` sees the keys ``j <= i + offset``. By default the *last*
    query is lined up with the last key, ``offset = Tk - Tq``, which is
    right when the first ``Tk - Tq`` keys come from a cache. ``offset=0``
    lines up the first query with the first key.

    Args:
        query_length: number of queries ``Tq``.
        key_length: number of keys ``Tk``; ``Tq`` if omitted.
        offset: how many keys lie before the first query.
        device: where to create the mask.

    Returns:
        Boolean mask ``(Tq, Tk)``, ``True`` where attention is allowed.

    Raises:
        TypeError: if a length or the offset is not an int.
        ValueError: if a length is negative.

    Example:
        >>> causal_mask(2, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
        >>> causal_mask(2, 4, offset=0).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0]], dtype=torch.int32)

    Built in :ref:`section 5.3 <sec-one-meaning>`.
    """
    check_sizes(0, query_length=query_length)
    if key_length is None:
        key_length = query_length
    check_sizes(0, key_length=key_length)
    if offset is None:
        offset = key_length - query_length
    else:
        check_sizes(-sys.maxsize, offset=offset)
    everything = torch.ones(
        query_length, key_length, dtype=torch.bool, device=device
    )
    return everything.tril(offset)


def _from_additive(
    name: str, mask: Shaped[Tensor, "..."]
) -> Bool[Tensor, "..."]:
    """Read an additive mask of zeros and minus infinities."""
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{name} must be a boolean or floating-point tensor, got {kind}"
        )
    keep = mask == 0
    if not torch.compiler.is_compiling() and not bool(
        (keep | (mask == -math.inf)).all()
    ):
        raise ValueError(
            f"{name} holds values other than 0 and -inf: it is a bias, or "
            "it was filled with a finite constant. A bias goes to "
            "scaled_dot_product_attention as bias=, and to no layer; compare "
            "a filled mask with its constant yourself."
        )
    return keep


def _kept(name: str, mask: Shaped[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Read a mask of the opposite convention, boolean or additive."""
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return ~mask
    return _from_additive(name, mask)


def _blocked(
    mask: Bool[Tensor, "..."], dtype: torch.dtype | None
) -> Shaped[Tensor, "..."]:
    """Write a mask in the opposite convention, boolean or additive."""
    return ~mask if dtype is None else to_sdpa_mask(mask, dtype=dtype)


def to_sdpa_mask(
    mask: Bool[Tensor, "..."], *, dtype: torch.dtype | None = None
) -> Shaped[Tensor, "..."]:
    """Write a mask for ``torch.nn.functional.scaled_dot_product_attention``.

    Its boolean masks mean what ours mean; its float masks are added to the
    scores.

    Args:
        mask: boolean mask, ``True`` = may be attended.
        dtype: ``None`` for the boolean form, or the floating-point type of
            the additive form (0 = may be attended, ``-inf`` = may not).

    Returns:
        The mask in the form asked for, same shape.

    Raises:
        TypeError: if ``mask`` is not boolean or ``dtype`` not floating.

    Example:
        >>> to_sdpa_mask(torch.tensor([True, False]), dtype=torch.float32)
        tensor([0., -inf])

    Built in :ref:`section 5.5 <sec-torch-masks>`.
    """
    _check_bool("mask", mask)
    if dtype is None:
        return mask
    check_type("dtype", dtype, torch.dtype, "a torch.dtype")
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be floating-point, got {dtype}")
    return torch.where(mask, 0.0, -math.inf).to(dtype)


def from_sdpa_mask(attn_mask: Shaped[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Read a mask of ``torch.nn.functional.scaled_dot_product_attention``.

    Args:
        attn_mask: boolean (``True`` = may be attended) or additive
            (0 = may be attended, ``-inf`` = may not).

    Returns:
        Boolean mask, ``True`` = may be attended, same shape.

    Raises:
        TypeError: if ``attn_mask`` is neither boolean nor floating-point.
        ValueError: if a float mask holds anything but 0 and ``-inf``.

    Example:
        >>> from_sdpa_mask(torch.tensor([0.0, float("-inf")]))
        tensor([ True, False])

    Built in :ref:`section 5.5 <sec-torch-masks>`.
    """
    if isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool:
        return attn_mask
    return _from_additive("attn_mask", attn_mask)


def to_key_padding_mask(
    mask: Bool[Tensor, "B *one Tk"], *, dtype: torch.dtype | None = None
) -> Shaped[Tensor, "B Tk"]:
    """Write a padding mask as the ``key_padding_mask`` of PyTorch's layers.

    There, ``True`` marks a key that is *blocked*.

    Args:
        mask: ``(B, 1, Tk)`` or ``(B, 1, 1, Tk)``, ``True`` = may be
            attended.
        dtype: ``None`` for the boolean form, or the floating-point type of
            the additive form.

    Returns:
        ``(B, Tk)``: ``True`` = pad, or additive 0 / ``-inf``.

    Raises:
        TypeError: if ``mask`` is not boolean.
        ValueError: if ``mask`` has another shape, for example one row for
            each query: such a mask goes through :func:`to_mha_mask`.

    Example:
        >>> to_key_padding_mask(padding_mask([1, 2]))
        tensor([[False,  True],
                [False, False]])

    Built in :ref:`section 5.5 <sec-torch-masks>`.
    """
    _check_bool("mask", mask)
    if mask.dim() not in (3, 4) or any(n != 1 for n in mask.shape[1:-1]):
        raise ValueError(
            "mask must have shape (B, 1, Tk) or (B, 1, 1, Tk), got "
            f"{tuple(mask.shape)}"
        )
    return _blocked(mask.flatten(1), dtype)


def from_key_padding_mask(
    key_padding_mask: Shaped[Tensor, "B Tk"],
) -> Bool[Tensor, "B 1 Tk"]:
    """Read the ``key_padding_mask`` of PyTorch's layers.

    Args:
        key_padding_mask: ``(B, Tk)``, boolean with ``True`` = pad, or
            additive with ``-inf`` = pad.

    Returns:
        Boolean mask ``(B, 1, Tk)``, ``True`` = may be attended.

    Raises:
        TypeError: if the mask is neither boolean nor floating-point.
        ValueError: if it is not two-dimensional, or a float mask holds
            anything but 0 and ``-inf``.

    Example:
        >>> from_key_padding_mask(torch.tensor([[False, True]]))
        tensor([[[ True, False]]])

    Built in :ref:`section 5.5 <sec-torch-masks>`.
    """
    keep = _kept("key_padding_mask", key_padding_mask)
    if keep.dim() != 2:
        raise ValueError(
            "key_padding_mask must have shape (B, Tk), got "
            f"{tuple(keep.shape)}"
        )
    return keep[:, None]


def to_mha_mask(
    mask: Bool[Tensor, "..."],
    *,
    num_heads: int | None = None,
    query_length: int | None = None,
    dtype: torch.dtype | None = None,
) -> Shaped[Tensor, "..."]:
    """Write a mask as the ``attn_mask`` of ``torch.nn.MultiheadAttention``.

    There, ``True`` marks a pair that is *blocked*, and a mask that differs
    between samples or heads has the shape ``(B * H, Tq, Tk)``, the heads
    of one sample side by side.

    Args:
        mask: ``(Tq, Tk)``, ``(B, Tq or 1, Tk)`` or
            ``(B, H or 1, Tq or 1, Tk)``, ``True`` = may be attended.
        num_heads: ``H``; needed unless the mask is ``(Tq, Tk)``.
        query_length: ``Tq``; needed if the mask's query axis is 1.
        dtype: ``None`` for the boolean form, or the floating-point type of
            the additive form.

    Returns:
        ``(Tq, Tk)`` or ``(B * H, Tq, Tk)``, ``True`` = blocked, or
        additive 0 / ``-inf``.

    Raises:
        TypeError: if ``mask`` is not boolean.
        ValueError: if the shape does not fit, or ``num_heads`` is needed
            and missing.

    Example:
        >>> mask = padding_mask([1, 2])
        >>> to_mha_mask(mask, num_heads=3, query_length=5).shape
        torch.Size([6, 5, 2])

    Built in :ref:`section 5.5 <sec-torch-masks>`.
    """
    _check_bool("mask", mask)
    shape = tuple(mask.shape)
    if mask.dim() not in (2, 3, 4):
        raise ValueError(f"mask must have 2, 3 or 4 axes, got shape {shape}")
    if num_heads is not None:
        check_sizes(num_heads=num_heads)
    if query_length is None:
        query_length = mask.shape[-2]
    check_sizes(0, query_length=query_length)
    if mask.shape[-2] not in (1, query_length):
        raise ValueError(
            f"mask of shape {shape} does not fit query_length={query_length}"
        )
    if mask.dim() == 2:
        return _blocked(mask.expand(query_length, -1), dtype)
    if num_heads is None:
        raise ValueError(f"num_heads is needed for a mask of shape {shape}")
    if mask.dim() == 3:
        mask = mask[:, None]
    if mask.shape[1] not in (1, num_heads):
        raise ValueError(
            f"mask of shape {shape} does not fit num_heads={num_heads}"
        )
    every_head = mask.expand(-1, num_heads, query_length, -1)
    return _blocked(every_head.flatten(0, 1), dtype)


def from_mha_mask(
    attn_mask: Shaped[Tensor, "..."], *, num_heads: int | None = None
) -> Bool[Tensor, "..."]:
    """Read the ``attn_mask`` of ``torch.nn.MultiheadAttention``.

    Args:
        attn_mask: ``(Tq, Tk)`` or ``(B * H, Tq, Tk)``, boolean with
            ``True`` = blocked, or additive with ``-inf`` = blocked.
        num_heads: ``H``; needed for the three-dimensional form.

    Returns:
        Boolean mask ``(Tq, Tk)`` or ``(B, H, Tq, Tk)``, ``True`` = may be
        attended.

    Raises:
        TypeError: if the mask is neither boolean nor floating-point.
        ValueError: if the shape does not fit, or a float mask holds
            anything but 0 and ``-inf``.

    Example:
        >>> from_mha_mask(torch.tensor([[False, True], [False, False]]))
        tensor([[ True, False],
                [ True,  True]])

    Built in :ref:`section 5.5 <sec-torch-masks>`.
    """
    keep = _kept("attn_mask", attn_mask)
    shape = tuple(keep.shape)
    if keep.dim() == 2:
        return keep
    if keep.dim() != 3:
        raise ValueError(
            "attn_mask must have shape (Tq, Tk) or (B * H, Tq, Tk), got "
            f"{shape}"
        )
    if num_heads is None:
        raise ValueError(
            f"num_heads is needed for an attn_mask of shape {shape}"
        )
    check_sizes(num_heads=num_heads)
    if shape[0] % num_heads:
        raise ValueError(
            f"attn_mask of shape {shape} does not split into "
            f"num_heads={num_heads}"
        )
    return keep.reshape(shape[0] // num_heads, num_heads, *shape[1:])


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
