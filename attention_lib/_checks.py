"""Refusals that name the argument, what it got and what is right."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available

# Asked once: a compiler cannot always follow the question.
AUTOCAST_DEVICES = frozenset(
    filter(
        is_autocast_available,
        ("cpu", "cuda", "hpu", "ipu", "mps", "mtia", "xla", "xpu"),
    )
)


def check_type(
    name: str, value: Any, kind: type | tuple[type, ...], what: str
) -> None:
    """Refuse a value that is not of this type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")


def check_sizes(least: int = 1, **sizes: Any) -> None:
    """Refuse what is no whole number, or less than the least."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(
            size, (int, np.integer, torch.SymInt)
        ):
            raise TypeError(f"{name} must be an int, got {size!r}")
        if size < least:
            raise ValueError(f"{name} must be at least {least}, got {size}")


def check_number(
    name: str,
    value: Any,
    low: float | int = -sys.float_info.max,
    high: float | int = sys.float_info.max,
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


def kind_of(value: Any) -> str:
    """Say what a value is: the type of a tensor's numbers, or its class."""
    if isinstance(value, Tensor):
        return str(value.dtype)
    return type(value).__name__


def check_flags(**flags: Any) -> None:
    """Refuse what PyTorch would take for True, such as a string."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, got {flag!r}")


def refuse_input(name: str, value: Any) -> NoReturn:
    """Say why something is no query, key or value."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, got {kind_of(value)}"
        )
    raise ValueError(
        f"{name} must have shape (..., length, width), got "
        f"{tuple(value.shape)}"
    )


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse inputs that are no tensors of one kind of number."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not (
            isinstance(tensor, Tensor)
            and tensor.is_floating_point()
            and tensor.dim() > 1
        ):
            refuse_input(name, tensor)
    if not query.device == key.device == value.device:
        raise ValueError(
            "query, key and value must be on one device, got "
            f"{query.device}, {key.device} and {value.device}"
        )
    if not query.dtype == key.dtype == value.dtype:
        kind = query.device.type
        if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
            return  # layers choose their own precision
        raise TypeError(
            "query, key and value must share one type, got "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )


def refuse_shapes(rule: str, *inputs: Tensor) -> NoReturn:
    """Say that the shapes of query, key and value break a rule."""
    query, key, value = (tuple(tensor.shape) for tensor in inputs)
    raise ValueError(f"{rule}, got query {query}, key {key}, value {value}")


def check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    **flags: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Refuse what no scaled attention can use; return mask and bias fitted.

    The one gate of ``scaled_dot_product_attention`` and what stands in for
    it: each key head may serve a group of query heads.
    """
    for flag in flags.values():
        if flag is not True and flag is not False:
            check_flags(**flags)
    for tensor in (query, key, value):
        if (
            not isinstance(tensor, Tensor)
            or tensor.dim() < 2
            or not tensor.is_floating_point()
            or tensor.dtype != query.dtype
            or tensor.device != query.device
        ):
            check_inputs(query, key, value)
    if key.shape[-2] != value.shape[-2]:
        refuse_shapes("key and value must be equally long", query, key, value)
    if query.shape[-1] != key.shape[-1]:
        refuse_shapes("query and key must be equally wide", query, key, value)
    leading: Sequence[int] = query.shape[:-2]
    if not leading == key.shape[:-2] == value.shape[:-2]:
        leading = _join_leading(query, key, value)
    scores = (*leading, query.shape[-2], key.shape[-2])
    formula = flags.get("need_weights") and not flags.get("is_causal")
    if formula and bias is None and leading == key.shape[:-2]:
        return mask, None  # masked_softmax fits it
    if mask is not None:
        mask = fit_mask(mask, scores, query.device)
    if bias is not None:
        bias = fit_bias(bias, scores, query.device)
    return mask, bias


def _join_leading(query: Tensor, key: Tensor, value: Tensor) -> Sequence[int]:
    """Broadcast the axes before the last two; grouped heads count once."""
    heads: tuple[int, ...] = ()
    shapes = [tensor.shape[:-2] for tensor in (query, key, value)]
    if (
        query.dim() == key.dim() == value.dim() == 4
        and 1 < key.shape[1] == value.shape[1] < query.shape[1]
    ):
        if query.shape[1] % key.shape[1]:
            refuse_shapes(
                "key heads must divide query heads", query, key, value
            )
        heads = (query.shape[1],)
        shapes = [shape[:-1] for shape in shapes]
    try:
        outer = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        refuse_shapes("axes before the last two must match", query, key, value)
    return (*outer, *heads)


def fit_mask(
    mask: Any,
    scores: Any,
    device: torch.device | None = None,
    name: str = "mask",
) -> Tensor:
    """Refuse a mask with no meaning for such scores; else line it up.

    Beside four axes of scores, three axes mean (B, Tq or 1, Tk): one mask
    for each sample, whatever the number of heads. Scores are given
    themselves, or as their shape and device.
    """
    if device is None:
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            check_tensor("scores", scores, "floating-point")
        scores, device = scores.shape, scores.device
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a boolean tensor (True = may be attended), got "
            f"{kind_of(mask)}. mask.bool() converts 0 and 1, from_sdpa_mask "
            "0 and -inf, padding_mask lengths, from_attention_mask (B, T) "
            "with 1 = keep; numbers to add to the scores go to bias="
        )
    fitted = mask
    if mask.dim() == 3 and len(scores) == 4:
        fitted = mask[:, None]
    if fitted.dim() > len(scores) or mask.device != device:
        refuse_fit(name, mask, scores, device)
    for axis in range(-fitted.dim(), 0):
        if fitted.shape[axis] not in (1, scores[axis]):
            refuse_fit(name, mask, scores, device)
    return fitted


def fit_bias(bias: Any, scores: Sequence[int], device: torch.device) -> Tensor:
    """Refuse a bias that does not broadcast to the scores."""
    check_tensor("bias", bias, "floating-point")
    if bias.dim() > len(scores) or bias.device != device:
        refuse_fit("bias", bias, scores, device)
    for axis in range(-bias.dim(), 0):
        if bias.shape[axis] not in (1, scores[axis]):
            refuse_fit("bias", bias, scores, device)
    return bias


def refuse_fit(
    name: str, tensor: Tensor, scores: Sequence[int], device: torch.device
) -> NoReturn:
    """Say why a mask or bias does not belong to the scores."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, scores on {device}")
    hint = ""
    if name != "bias" and tensor.dim() == 2:
        hint = (
            "; two axes mean (Tq, Tk): is it (B, T) with 1 = keep? Then "
            "pass from_attention_mask(mask)"
        )
    elif name != "bias" and tensor.dim() == 3 and len(scores) == 4:
        hint = (
            "; three axes mean (B, Tq or 1, Tk): is it (B * H, Tq, Tk) for "
            "torch.nn.MultiheadAttention? Then pass from_mha_mask"
        )
    raise ValueError(
        f"{name} of shape {tuple(tensor.shape)} does not fit scores "
        f"{tuple(scores)}{hint}"
    )


def truth(statement: Tensor) -> bool | None:
    """Return what is true, or None where there are no values to look at.

    There are none while a compiler traces, under vmap, and on meta tensors.
    """
    if statement.device.type == "meta" or torch.compiler.is_compiling():
        return None
    try:
        return bool(statement)
    except RuntimeError:
        return None


def check_keep(mask: Any) -> None:
    """Refuse what is no mask (B, T) of 1 = keep and 0 = pad."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"attention_mask must be a tensor, got {kind_of(mask)}"
        )
    if mask.dim() != 2:
        raise ValueError(
            f"attention_mask must have shape (B, T), got {tuple(mask.shape)}"
        )
    if truth(((mask != 0) & (mask != 1)).any()):
        raise ValueError(
            "attention_mask must hold 1 (keep) and 0 (pad): is it additive, "
            "or token ids?"
        )


def check_row_lengths(
    lengths: Any, max_length: int | None, side: str
) -> tuple[Tensor, int]:
    """Refuse what cannot be lengths of padded rows; return both filled in."""
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths)
        lengths = lengths if lengths.numel() else lengths.long()
    if lengths.dtype == torch.bool or lengths.is_floating_point():
        raise TypeError(
            f"lengths must hold integers, got {lengths.dtype}; "
            "did you pass a mask instead of lengths?"
        )
    if lengths.dim() != 1:
        raise ValueError(
            f"lengths must have shape (B,), got {tuple(lengths.shape)}; "
            "did you pass token ids?"
        )
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', got {side!r}")
    if max_length is None:
        max_length = int(lengths.max()) if len(lengths) else 0
    check_sizes(0, max_length=max_length)
    if truth(((lengths < 0) | (lengths > max_length)).any()):
        raise ValueError(
            f"lengths must lie between 0 and max_length={max_length}, got "
            f"{lengths.tolist()}"
        )
    return lengths, max_length


def check_layer_sizes(
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_head: int | None,
    bias: bool,
    dropout: float,
) -> None:
    """Refuse what no layer can be built of."""
    check_flags(bias=bias)
    check_number("dropout", dropout, 0.0, 1.0)
    check_sizes(
        d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads
    )
    if d_head is not None:
        check_sizes(d_head=d_head)
    elif d_model % num_heads:
        raise ValueError(
            f"num_heads={num_heads} does not divide d_model={d_model}; "
            "d_head= sets the width of a head"
        )
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_kv_heads={num_kv_heads} does not divide "
            f"num_heads={num_heads}"
        )


def check_layer_call(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    positions: Tensor | None,
    cache: Any,
    **flags: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Refuse a call of a layer before a cache is written to.

    Returns mask and bias, lined up with the scores, and the positions.
    """
    for tensor in (query, key, value):
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            check_inputs(query, key, value)
            refuse_shapes("inputs must be (B, T, width)", query, key, value)
    widths = (layer.d_model, layer.kdim, layer.vdim)
    if (query.shape[2], key.shape[2], value.shape[2]) != widths:
        refuse_shapes(f"widths must be {widths}", query, key, value)
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        rule = "inputs must be (B, T, width) of one batch B, which comes first"
        refuse_shapes(rule, query, key, value)
    if key.shape[1] != value.shape[1]:
        refuse_shapes("key and value must be equally long", query, key, value)
    (batch, queries, _), keys, cached = query.shape, key.shape[1], 0
    if cache is not None:  # refused before it is written to
        check_flags(**flags)
        cached = _check_cache(cache, key is not query and keys > 0)
        scores = (batch, layer.num_heads, queries, cached + keys)
        if mask is not None:
            mask = fit_mask(mask, scores, query.device)
        if bias is not None:
            bias = fit_bias(bias, scores, query.device)
    if positions is None and layer.rotary is not None:
        start = cached + min(0, keys - queries)
        positions = torch.arange(start, cached + keys, device=query.device)
    elif positions is not None and layer.rotary is None:
        raise ValueError("positions need a layer with rotary=")
    elif positions is not None:
        check_tensor("positions", positions, "whole")
        fits = [(keys,), (1, keys), (batch, keys)]
        if tuple(positions.shape) not in fits or queries > keys:
            raise ValueError(
                f"positions must be those of the {keys} keys of this call, "
                f"of which the {queries} queries take the last, got shape "
                f"{tuple(positions.shape)}"
            )
    return mask, bias, positions


def _check_cache(cache: Any, other: bool) -> int:
    """Return how many keys a cache holds; refuse to mix two sequences."""
    if cache is None:
        return 0
    if not (hasattr(cache, "length") and hasattr(cache, "update")):
        raise TypeError(
            f"cache must have length and update, got {kind_of(cache)}"
        )
    if cache.length and other:
        raise ValueError(
            "key is given beside a filled cache: a cache of another sequence "
            "is filled once, then pass key[:, :0]; in self-attention, leave "
            "key out"
        )
    length: int = cache.length
    return length
