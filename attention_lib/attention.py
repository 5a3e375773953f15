# Written by tools/export.py from 02_attention_by_hand.ipynb: edit there.
"""The one formula of attention: score, masked softmax, weighted sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available
from torch.nn import functional as F

from attention_lib._checks import check_axis, check_callable, check_number

__all__ = [
    "attend",
    "masked_softmax",
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
