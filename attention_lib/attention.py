# Written by tools/export.py from these cells, to be edited there:
# 02_attention_by_hand.ipynb, 05_masking.ipynb
"""The one formula of attention: score, masked softmax, weighted sum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available
from torch.nn import functional as F

from attention_lib._checks import (
    check_axis,
    check_callable,
    check_number,
    check_type,
)
from attention_lib.masks import causal_mask, to_sdpa_mask

__all__ = [
    "attend",
    "masked_softmax",
    "scaled_dot_product_attention",
]

# Asked once: a compiler cannot always follow the question.
_AUTOCAST_DEVICES = frozenset(
    filter(
        is_autocast_available,
        ("cpu", "cuda", "hpu", "ipu", "mps", "mtia", "xla", "xpu"),
    )
)


def _autocasts(device_type: str) -> bool:
    """Tell whether layers choose their own precision on this device."""
    return device_type in _AUTOCAST_DEVICES and torch.is_autocast_enabled(
        device_type
    )


def _widen(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32, others as they are."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor


def _check_floating(name: str, tensor: Tensor) -> None:
    """Refuse anything but a floating-point tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(tensor).__name__}; "
            f"torch.as_tensor({name}) converts lists and NumPy arrays"
        )
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} must be of a floating-point type, got {tensor.dtype}; "
            f"{name}.float() converts it"
        )


def _check_mask(mask: Tensor, scores: Tensor) -> None:
    """Refuse a mask that is not boolean or does not fit the scores."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            "mask must be a boolean torch.Tensor, got "
            f"{type(mask).__name__}; torch.as_tensor(mask, dtype=torch.bool) "
            "converts lists and NumPy arrays"
        )
    if mask.dtype != torch.bool:
        raise TypeError(
            "mask must be boolean (True = may be attended), got "
            f"{mask.dtype}; convert a 0/1 mask with mask.bool() and a mask "
            "of 0 and -inf with (mask == 0); if these are lengths, make a "
            "mask of them first: torch.arange(Tk) < lengths[:, None, None]"
        )
    if mask.device != scores.device:
        raise ValueError(
            f"mask is on {mask.device} but the scores are on "
            f"{scores.device}; move it with mask.to({str(scores.device)!r})"
        )
    tail = scores.shape[scores.dim() - mask.dim() :]
    if mask.dim() > scores.dim() or any(
        m not in (1, s) for m, s in zip(mask.shape, tail, strict=True)
    ):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to "
            f"scores of shape {tuple(scores.shape)}"
        )


def _quick_softmax(
    scores: Tensor, mask: Tensor | None, dim: int
) -> Tensor | None:
    """Return the softmax if no row needs special care, else ``None``.

    Each pass over all scores costs time. So a row with no key is found in
    the mask, which is often small; it keeps all its scores and is emptied
    after the softmax. A row that this does not serve, such as one with NaN
    behind the mask, comes out as NaN throughout: its first key tells. Values
    are looked at on the CPU only: a compiler has none yet, and the CPU would
    have to wait for a GPU.
    """
    if (
        scores.device.type != "cpu"
        or scores.dim() == 0
        or torch.compiler.is_compiling()
    ):
        return None
    alive = out = None
    try:
        if mask is not None:
            keep = mask[(None,) * (scores.dim() - mask.dim())]
            rows = keep.view(torch.uint8).amax(dim, keepdim=True) > 0
            if not bool(rows.all()):
                alive, keep = rows, keep | ~rows
            if keep.numel() < scores.numel():
                hidden = torch.where(keep, 0.0, -torch.inf)
                scores = scores + hidden.to(scores.dtype)
            else:
                scores = torch.where(keep, scores, -torch.inf)
            if not (torch.is_grad_enabled() and scores.requires_grad):
                out = scores  # nobody else needs this memory
        weights = torch.softmax(scores, dim, out=out)
        if alive is not None:
            weights = weights * alive
        lost = bool(weights.narrow(dim, 0, 1).isnan().any())
    except RuntimeError:  # as under vmap, which shows no values
        return None
    return None if lost else weights


def masked_softmax(
    scores: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    dim: int = -1,
) -> Float[Tensor, "..."]:
    """Turn scores into weights that sum to one over the allowed keys.

    Masked scores, and scores that are minus infinity themselves, get the
    weight 0 exactly. A row with no allowed key gets all its weights 0 and
    finite (zero) gradients. Half-precision scores are exponentiated and
    summed in float32. The inputs are never written to.

    Args:
        scores: Any shape, usually ``(..., Tq, Tk)``; finite scores of any
            size.
        mask: Boolean, ``True`` = may be attended; broadcast to the shape
            of ``scores``, which it may not enlarge.
        dim: The axis over which the weights sum to one: the keys.

    Returns:
        The weights, in the shape and type of ``scores``.

    Raises:
        TypeError: If ``scores`` is not floating point or ``mask`` is not
            boolean.
        ValueError: If ``mask`` does not broadcast to ``scores`` or is on
            another device.

    References:
        Vaswani et al. (2017), *Attention Is All You Need*, section 3.2.1.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0, 1.0], [5.0, 5.0, 5.0]])
        >>> mask = torch.tensor([[True, False, True], [False] * 3])
        >>> masked_softmax(scores, mask)
        tensor([[0.5000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000]])

    Built in :ref:`section 2.6 <sec-one-formula>`.
    """
    _check_floating("scores", scores)
    if mask is not None:
        _check_mask(mask, scores)
    check_axis("dim", dim, scores.dim())
    wide = _widen(scores)
    if wide.numel() == 0:
        return torch.softmax(scores, dim=dim)
    weights = _quick_softmax(wide, mask, dim)
    if weights is None:
        if mask is not None:
            wide = torch.where(mask, wide, -torch.inf)
        # -inf hides a key; in a row with no key at all it would give 0/0, so
        # such a row is filled with 0 before the softmax and emptied after.
        dead = wide.amax(dim=dim, keepdim=True) == -torch.inf
        weights = torch.softmax(wide.masked_fill(dead, 0.0), dim=dim)
        weights = weights.masked_fill(dead, 0.0)
    return weights.to(scores.dtype)


def _broadcast_leading(*tensors: Tensor) -> tuple[int, ...] | None:
    """Broadcast the axes before the last two; ``None`` if they do not fit."""
    first = tensors[0].shape[:-2]
    if all(tensor.shape[:-2] == first for tensor in tensors):
        return tuple(first)
    rank = max(tensor.dim() for tensor in tensors) - 2
    leading = [1] * rank
    for tensor in tensors:
        start = rank - (tensor.dim() - 2)
        for axis, size in enumerate(tensor.shape[:-2], start=start):
            if leading[axis] == 1:
                leading[axis] = size
            elif size not in (1, leading[axis]):
                return None
    return tuple(leading)


def _check_inputs(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[int, ...]:
    """Refuse inputs that no score could compare; return the leading axes."""
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        _check_floating(name, tensor)
        if tensor.dim() < 2:
            raise ValueError(
                f"{name} must have at least two dimensions, (..., length, "
                f"width), got shape {tuple(tensor.shape)}"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{name} is on {tensor.device} but query is on {query.device}"
            )
    if query.shape == key.shape == value.shape:
        return tuple(query.shape[:-2])
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            "key and value must have the same length, one value for each "
            f"key: key {tuple(key.shape)} has {key.shape[-2]}, value "
            f"{tuple(value.shape)} has {value.shape[-2]}"
        )
    leading = _broadcast_leading(query, key, value)
    if leading is None:
        shapes = [f"{name} {tuple(t.shape)}" for name, t in named.items()]
        raise ValueError(
            "the axes before the last two must be equal or 1 in query, key "
            f"and value, got {', '.join(shapes)}"
        )
    return leading


def _check_types(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse inputs of different precision."""
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            "query, key and value must share one type, got "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )


def _check_scores(scores: Tensor, query: Tensor, key: Tensor) -> None:
    """Refuse scores that are not one number per query and key."""
    _check_floating("the result of score", scores)
    expected = (query.shape[-2], key.shape[-2])
    if tuple(scores.shape[-2:]) != expected:
        raise ValueError(
            f"score must return shape (..., Tq, Tk) = (..., {expected[0]}, "
            f"{expected[1]}) for query {tuple(query.shape)} and key "
            f"{tuple(key.shape)}, got {tuple(scores.shape)}"
        )


def attend(
    query: Float[Tensor, "*#batch Tq d_q"],
    key: Float[Tensor, "*#batch Tk d_k"],
    value: Float[Tensor, "*#batch Tk d_v"],
    *,
    score: Callable[[Tensor, Tensor], Tensor],
    mask: Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
) -> tuple[Float[Tensor, "... Tq d_v"], Float[Tensor, "... Tq Tk"]]:
    """Let every query take a weighted mean of the values.

    Computes ``softmax(score(query, key)) @ value`` for any score. Half
    precision is widened: scores, softmax and weighted sum are float32 and
    the results come back in the type of the inputs. Under
    :class:`torch.autocast` the same holds; the score is then called with
    float32 tensors and with autocast off.

    Args:
        query: ``(..., Tq, d_q)``, one row for each position that asks.
        key: ``(..., Tk, d_k)``, one row for each position that is asked.
        value: ``(..., Tk, d_v)``, what each of these hands over.
        score: Called as ``score(query, key)``; returns ``(..., Tq, Tk)``.
            Which widths fit together is for the score to say.
        mask: Boolean, ``True`` = may be attended; broadcast to the scores.
        dropout_p: Probability of dropping a weight before the sum, the
            others being divided by ``1 - dropout_p``. A function knows no
            training mode: it always applies, so pass 0 when evaluating.

    Returns:
        The context ``(..., Tq, d_v)`` and the weights ``(..., Tq, Tk)``
        as they were before dropout. A query with no key to attend to has
        weights 0 and context 0.

    Raises:
        TypeError: If an input is not floating point, the inputs differ in
            type, or ``mask`` is not boolean.
        ValueError: If lengths, ranks, devices or the shapes of the mask or
            of the scores do not fit, or ``dropout_p`` is not in [0, 1].

    References:
        Bahdanau et al. (2015), equations 5 and 6; Vaswani et al. (2017),
        equation 1.

    Example:
        >>> query = key = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> value = torch.tensor([[1.0], [3.0]])
        >>> context, weights = attend(
        ...     query, key, value, score=lambda q, k: q @ k.mT
        ... )
        >>> weights
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
        >>> context
        tensor([[1.5379],
                [2.4621]])

    Built in :ref:`section 2.6 <sec-one-formula>`.
    """
    _check_inputs(query, key, value)
    check_callable("score", score)
    check_number("dropout_p", dropout_p, 0.0, 1.0)
    device = query.device.type
    if _autocasts(device):
        # Autocast would compute the scores in half precision.
        with torch.autocast(device, enabled=False):
            context, weights = attend(
                _widen(query),
                _widen(key),
                _widen(value),
                score=score,
                mask=mask,
                dropout_p=dropout_p,
            )
        return context.to(value.dtype), weights.to(query.dtype)

    _check_types(query, key, value)
    scores = score(query, key)
    _check_scores(scores, query, key)
    weights = masked_softmax(_widen(scores), mask)
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    context = dropped @ _widen(value)
    return context.to(value.dtype), weights.to(query.dtype)


def _check_fits(name: str, tensor: Tensor, query: Tensor, key: Tensor) -> None:
    """Refuse a mask or bias that does not broadcast to the scores."""
    if tensor.device != query.device:
        raise ValueError(
            f"{name} is on {tensor.device}, query on {query.device}"
        )
    leading = _broadcast_leading(query, key)
    assert leading is not None
    scores = (*leading, query.shape[-2], key.shape[-2])
    shape = tuple(tensor.shape)
    tail = scores[len(scores) - len(shape) :]
    if len(shape) > len(scores) or any(
        size not in (1, wanted)
        for size, wanted in zip(shape, tail, strict=True)
    ):
        raise ValueError(
            f"{name} of shape {shape} does not broadcast to the scores of "
            f"shape {scores}"
        )


def _check_options(
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float | None,
    dropout_p: float,
    query: Tensor,
    key: Tensor,
) -> None:
    """Refuse options of the wrong kind, shape or range."""
    if mask is not None:
        if not isinstance(mask, Tensor):
            raise TypeError(
                f"mask must be a boolean tensor, got {type(mask).__name__}"
            )
        if mask.dtype != torch.bool:
            raise TypeError(
                "mask must be boolean (True = may be attended), got "
                f"{mask.dtype}. Convert a 0/1 mask with mask.bool(), an "
                "additive 0/-inf mask with from_sdpa_mask(mask); pass "
                "numbers to be added to the scores as bias=."
            )
        _check_fits("mask", mask, query, key)
    if bias is not None:
        if not isinstance(bias, Tensor):
            raise TypeError(
                f"bias must be a tensor, got {type(bias).__name__}"
            )
        if not bias.is_floating_point():
            raise TypeError(
                f"bias must be floating-point, got {bias.dtype}; "
                "did you mean mask=?"
            )
        _check_fits("bias", bias, query, key)
    if scale is not None:
        check_number("scale", scale)
    check_number("dropout_p", dropout_p, 0.0, 1.0)


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax, in the memory of the scores if nobody needs them.

    A second array of ``Tq * Tk`` numbers costs more time than filling it.
    """
    needed = torch.is_grad_enabled() and scores.requires_grad
    if not (needed or torch.compiler.is_compiling()):
        try:
            return torch.softmax(scores, dim=-1, out=scores)
        except RuntimeError:
            # vmap and forward-mode differentiation know no ``out``.
            pass
    return scores.softmax(dim=-1)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dead: Tensor | None,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Compute scores, weights and context one after the other.

    Each pass over the ``Tq * Tk`` scores costs more than the arithmetic,
    so the scale goes into the small query and all masks into one sum.
    """
    # Heads are often strided views, which a product would copy slowly.
    query, key = (query * scale).contiguous(), key.contiguous()
    scores = query @ key.transpose(-2, -1)
    if bias is not None:
        try:
            scores += bias
        except RuntimeError:  # vmap over the bias alone
            scores = scores + bias
    weights = _softmax(scores)
    if dead is not None:
        weights = weights.masked_fill(dead, 0.0)
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    context = dropped @ value.contiguous()
    if dead is not None:  # 0 times NaN would be NaN
        context = context.masked_fill(dead, 0.0)
    return context, weights


def _find_dead_rows(keep: Tensor) -> Tensor | None:
    """Return a column ``(..., 1)``, true where no key is kept, or ``None``.

    The largest byte of a row is found much faster than any ``True`` in it.
    Whether there is a dead row at all is looked up on the CPU only: it
    would stop a compiler, and make the CPU wait for a GPU.
    """
    if keep.shape[-1] == 0:
        return None  # sums over no key are 0 by themselves
    if torch.compiler.is_compiling() or keep.device.type != "cpu":
        return keep.view(torch.uint8).amax(dim=-1, keepdim=True) == 0
    try:
        largest = keep.view(torch.uint8).amax(dim=-1, keepdim=True)
        return None if bool(largest.all()) else largest == 0
    except RuntimeError:  # vmap shows no values
        return ~keep.any(dim=-1, keepdim=True)


def _as_four_axes(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """View ``(*leading, rows, columns)`` as ``(batch, heads, ...)``.

    Fused kernels exist for four axes only. Axes of length 1 stay, except
    where several axes have to be merged into one.
    """
    rank = len(leading) + 2
    if tensor.dim() == rank == 4:
        return tensor
    tensor = tensor.reshape(*[1] * (rank - tensor.dim()), *tensor.shape)
    if rank <= 4:
        for _ in range(4 - rank):
            tensor = tensor.unsqueeze(-3)
        return tensor
    tensor = tensor.expand(*leading[:-1], *tensor.shape[-3:])
    return tensor.flatten(0, -4)


def _expand_leading(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Repeat a tensor along leading axes, without copying it."""
    if tensor.shape[:-2] == leading:
        return tensor
    return tensor.expand(*leading, -1, -1)


def scaled_dot_product_attention(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    value: Float[Tensor, "*#batch Tk d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = True,
) -> tuple[Float[Tensor, "... Tq d_v"], Float[Tensor, "... Tq Tk"] | None]:
    """Attend with scaled dot products: softmax(scale · Q Kᵀ + bias) V.

    Without weights the work is done by PyTorch's fused kernel, which never
    stores the ``(Tq, Tk)`` scores. Values and gradients are those of the
    explicit computation on either path. A query with no key left gets the
    context 0 and the weights 0. The scores and softmax of half-precision
    inputs are computed in float32. As in PyTorch, a key or value that is
    hidden still has to be finite.

    Unlike :func:`torch.nn.functional.scaled_dot_product_attention` it
    returns a pair, calls a mask of numbers ``bias``, takes ``mask`` and
    ``is_causal`` together, and lines up the *last* query with the last key
    if ``is_causal`` (PyTorch: the first query with the first key).

    Args:
        query: ``(..., Tq, d_k)``; leading axes (batch, heads) broadcast.
        key: ``(..., Tk, d_k)``.
        value: ``(..., Tk, d_v)``.
        mask: boolean, ``True`` = may be attended, broadcastable to the
            scores ``(..., Tq, Tk)``.
        bias: numbers added to the scaled scores, broadcastable to them;
            an entry of ``-inf`` masks.
        is_causal: also let query ``i`` see only keys
            ``j <= i + Tk - Tq``, as :func:`~attention_lib.masks.causal_mask`
            does. Together with ``mask`` both apply.
        scale: factor of the dot products, ``1 / sqrt(d_k)`` if omitted.
        dropout_p: probability to drop a weight. A function knows no
            ``eval()``: pass 0 outside training.
        need_weights: whether to return the weights.

    Returns:
        The context ``(..., Tq, d_v)`` and the weights before dropout
        ``(..., Tq, Tk)``, or ``None`` in their place.

    Raises:
        TypeError: if an argument has the wrong type or dtype.
        ValueError: if shapes or devices do not fit together, or
            ``dropout_p`` is no probability.

    References:
        Vaswani et al. (2017), Attention Is All You Need, equation 1.

    Example:
        >>> query, key = torch.zeros(2, 3), torch.ones(4, 3)
        >>> context, weights = scaled_dot_product_attention(
        ...     query, key, torch.eye(4), is_causal=True
        ... )
        >>> weights
        tensor([[0.3333, 0.3333, 0.3333, 0.0000],
                [0.2500, 0.2500, 0.2500, 0.2500]])

    Built in :ref:`section 5.6 <sec-both-paths>`.
    """
    leading = _check_inputs(query, key, value)
    _check_types(query, key, value)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must have the same width, got query "
            f"{tuple(query.shape)} and key {tuple(key.shape)}"
        )
    check_type("is_causal", is_causal, bool, "True or False")
    check_type("need_weights", need_weights, bool, "True or False")
    _check_options(mask, bias, scale, dropout_p, query, key)
    device = query.device.type
    if _autocasts(device):
        # Autocast would compute the scores in half precision.
        with torch.autocast(device, enabled=False):
            return scaled_dot_product_attention(
                query,
                key,
                value,
                mask=mask,
                bias=bias,
                is_causal=is_causal,
                scale=scale,
                dropout_p=dropout_p,
                need_weights=need_weights,
            )
    query_length, width = query.shape[-2:]
    key_length, value_width = value.shape[-2:]
    if scale is None:
        scale = 1.0 / math.sqrt(max(width, 1))

    dtype = query.dtype
    empty = 0 in (query.numel(), key.numel(), value.numel())
    fused = not (need_weights or empty)
    if dtype in (torch.float16, torch.bfloat16):
        # A kernel for half types rounds a bias. The CPU has none for some
        # calls, and one that let scores in float16 overflow (PyTorch 2.6).
        in_half = device != "cpu" or (
            dtype == torch.bfloat16 and dropout_p == 0 and width == value_width
        )
        if not (fused and bias is None and in_half):
            query, key, value = query.float(), key.float(), value.float()

    # The kernel's own causal mask starts at the upper left corner, and is
    # multiplied by the scale: it fails unless that is positive. (An `if`
    # makes a plain bool of what a compiler knows as a symbol only.)
    kernel_causal = False
    own_mask = mask is None and bias is None and scale > 1e-30
    if fused and is_causal and own_mask and query_length == key_length:
        kernel_causal = True
    if mask is not None and mask.dim() < 2:
        mask = mask.reshape(1, -1)
    if is_causal and not kernel_causal and query_length > 1:
        causal = causal_mask(query_length, key_length, device=query.device)
        mask = causal if mask is None else mask & causal

    # A row without any key would divide 0 by 0 and send NaN backwards. It
    # looks at everything instead, and its result is blanked afterwards.
    dead = None
    if bias is not None:
        bias = bias.to(query.dtype).reshape(bias.shape or (1,))
        if mask is not None:
            bias = torch.where(mask, bias, -math.inf)
        dead = _find_dead_rows(bias != -math.inf)
        if dead is not None:
            bias = bias.masked_fill(dead, 0.0)
    elif mask is not None:
        dead = _find_dead_rows(mask)
        if dead is not None:
            mask = mask | dead

    if not fused:
        if bias is None and mask is not None:
            bias = to_sdpa_mask(mask, dtype=query.dtype)
        context, weights = _explicit(
            query, key, value, bias, dead, scale, dropout_p
        )
        kept = weights.to(dtype) if need_weights else None
        return context.to(dtype), kept

    attn_mask = mask if bias is None else bias
    context = F.scaled_dot_product_attention(
        _as_four_axes(_expand_leading(query, leading), leading),
        _as_four_axes(_expand_leading(key, leading), leading),
        _as_four_axes(_expand_leading(value, leading), leading),
        attn_mask=(
            None if attn_mask is None else _as_four_axes(attn_mask, leading)
        ),
        dropout_p=dropout_p,
        is_causal=kernel_causal,
        scale=scale,
    )
    if len(leading) != 2:
        context = context.reshape(*leading, query_length, value_width)
    if dead is not None:
        context = context.masked_fill(dead, 0.0)
    return context.to(dtype), None
