"""What half precision, autocast, speed and strange values ask for.

The chapters show what attention computes. Here lies how it is computed in
fewer passes over the memory, in types that hold it, and without what nobody
may see.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attention_lib._checks import (
    AUTOCAST_DEVICES,
    check_inputs,
    check_tensor,
    truth,
)
from attention_lib.masks import causal_mask

HALF = (torch.float16, torch.bfloat16)


def widen(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in HALF else tensor


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keep autocast from computing scores in half precision."""
    kind = device.type
    if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def wide_product(
    left: Tensor, right: Tensor, scale: float | Tensor = 1.0
) -> Tensor:
    """Return ``scale * left @ right``, in float32 for half types."""
    if left.dtype in HALF or right.dtype in HALF:
        left, right = left.float(), right.float()
    if isinstance(scale, Tensor) or scale != 1.0:
        left = left * scale
    kind = left.device.type
    if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return left @ right
    return left @ right


def prepare(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, AbstractContextManager[Any]]:
    """Widen inputs and hide NaN that no query may see.

    Returns them with a context that switches autocast off.
    """
    context: AbstractContextManager[Any] = nullcontext()
    for tensor in (query, key, value):
        if (
            not isinstance(tensor, Tensor)
            or not tensor.is_floating_point()
            or tensor.dtype != query.dtype
            or tensor.device != query.device
        ):
            check_inputs(query, key, value)
    kind = query.device.type
    if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
        context = torch.autocast(kind, enabled=False)
    if isinstance(mask, Tensor):
        key, value = hide_unseen(key, value, mask)
    if query.dtype in HALF or key.dtype in HALF or value.dtype in HALF:
        return query.float(), key.float(), value.float(), context
    return query, key, value, context


def quick_softmax(
    scores: Tensor, mask: Tensor | None, dim: int
) -> Tensor | None:
    """Return the masked softmax in few passes, or ``None`` if it cannot.

    A row with no key is found in the mask, which is often small; the row
    keeps all its scores and is emptied after the softmax. A row that this
    does not serve, such as one with NaN behind the mask, comes out as NaN
    throughout: its first key tells.
    """
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        check_tensor("scores", scores, "floating-point")
    if (
        scores.device.type != "cpu"  # which would have to wait for a GPU
        or torch.compiler.is_compiling()
        or scores.dim() == 0
        or scores.numel() == 0
    ):
        return None
    if scores.dtype in HALF:
        scores = scores.float()
    # New memory for all scores costs more time than filling it.
    own, alive = hasattr(scores, "disposable"), None
    try:
        if mask is not None:
            keep = mask[(None,) * (scores.dim() - mask.dim())]
            rows = keep.view(torch.uint8).amax(dim, keepdim=True) > 0
            if not bool(rows.all()):
                alive, keep = rows, keep | ~rows
            if own and mask.shape[-2:-1] == (1,):  # unseen keys are clean
                scores.add_(torch.where(keep, 0.0, -torch.inf))
            elif own:
                scores.masked_fill_(~keep, -torch.inf)
            elif keep.numel() < scores.numel():
                hidden = torch.where(keep, 0.0, -torch.inf)
                scores = scores + hidden.to(scores.dtype)
            else:
                scores = torch.where(keep, scores, -torch.inf)
        spare = own or mask is not None
        if torch.is_grad_enabled() and scores.requires_grad:
            spare = False
        weights = torch.softmax(scores, dim, out=scores if spare else None)
        lost = not own and bool(weights.narrow(dim, 0, 1).isnan().any())
        if alive is not None:
            weights = weights.masked_fill(~alive, 0.0)
    except RuntimeError:  # as under vmap, which shows no values
        return None
    return None if lost else weights


def hide_unseen(
    key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Put 0 for NaN and infinity that no query of the sample may see.

    Weights of 0 do not hide them: 0 times NaN is NaN.
    """
    if (
        mask.dtype != torch.bool  # refused later
        or mask.device != key.device
        or 0 in mask.shape
    ):
        return key, value
    mask = mask if mask.dim() > 1 else mask.reshape(1, -1)
    mask = mask[..., -max(key.shape[-2], 1) :]
    if mask.dim() == 3 and key.dim() == 4:
        mask = mask[:, None]
    seen = mask.any(-2) if mask.shape[-2] > 1 else mask[..., 0, :]
    if mask.dim() > 3:  # of any head: grouped heads share a key
        seen = seen.any(-2, keepdim=True)
    if key.device.type == "cpu" and not torch.compiler.is_compiling():
        hidden = ~seen.reshape(-1, seen.shape[-1]).all(0)
        try:
            if not hidden.any() or not (
                _spoiled(key, hidden) or _spoiled(value, hidden)
            ):
                return key, value
        except RuntimeError:  # vmap shows no values
            pass
    unseen = ~_shrunk(seen, key)[..., None]
    return (
        key.masked_fill(unseen & ~key.isfinite(), 0.0),
        value.masked_fill(unseen & ~value.isfinite(), 0.0),
    )


def mix(weights: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``weights @ value``, 0 for a query that may see no key.

    Weights of 0 do not make it 0 if a value is NaN or infinite.
    """
    context = weights @ value
    if mask is None:
        return context
    if context.device.type == "cpu" and not torch.compiler.is_compiling():
        try:
            if context.sum().isfinite():
                return context
        except RuntimeError:  # vmap shows no values
            pass
    if mask.dim() == 3 and context.dim() == 4:
        mask = mask[:, None]
    return context.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def _spoiled(tensor: Tensor, hidden: Tensor) -> bool:
    """Tell whether something hidden may not be finite, looking there only."""
    part = tensor.detach()
    if 4 * int(hidden.sum()) < part.shape[-2] == len(hidden):
        part = part[..., hidden, :]
    return not bool(part.sum().isfinite())


def _shrunk(seen: Tensor, key: Tensor) -> Tensor:
    """Join what samples see that share one key."""
    rows = key.shape[:-1]
    while seen.dim() > len(rows):
        seen = seen.any(0)
    for axis in range(-seen.dim(), -1):
        if rows[axis] == 1 and seen.shape[axis] > 1:
            seen = seen.any(axis, keepdim=True)
    return seen


def _revive(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Let rows with no key see everything; say which these are.

    They would divide 0 by 0 and send NaN backwards. Their context is
    emptied afterwards. (The largest byte of a row is found much faster than
    any True in it.)
    """
    try:
        alive = mask.view(torch.uint8).amax(-1, keepdim=True) > 0
    except RuntimeError:  # vmap over a mask
        alive = mask.any(-1, keepdim=True)
    if mask.device.type == "cpu" and truth(alive.all()):
        return mask, None
    return mask | ~alive, ~alive


def _kernel_types(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Widen half types where PyTorch's kernel would round or overflow.

    A kernel for half types rounds a bias. The CPU has none for some calls,
    and one that let scores in float16 overflow (PyTorch 2.6).
    """
    alike = query.dtype == key.dtype == value.dtype
    in_half = (
        alike
        and bias is None
        and (
            query.device.type != "cpu"
            or (
                query.dtype == torch.bfloat16
                and p == 0
                and query.shape[-1] == value.shape[-1]
            )
        )
    )
    if in_half:
        return query, key, value
    return widen(query), widen(key), widen(value)


def is_empty(*inputs: Tensor) -> bool:
    """Tell whether something is empty, which PyTorch's kernel refuses."""
    return any(0 in tensor.shape for tensor in inputs)


def join_masks(
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    query: Tensor,
    key: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Return one mask for all that hides, and a bias that is finite."""
    masks = [] if mask is None else [mask]
    if is_causal and query.shape[-2] > 1:
        lengths = query.shape[-2], key.shape[-2]
        masks.append(causal_mask(*lengths, device=query.device))
    if bias is not None:
        bias = bias.to(torch.promote_types(query.dtype, torch.float32))
        keep = bias != -math.inf
        if not truth(keep.all()):
            bias = torch.where(keep, bias, 0.0)
            # Beside four, three axes of a bias mean heads, of a mask samples.
            if keep.dim() == 3 and max(query.dim(), key.dim()) == 4:
                keep = keep[None]
            masks.append(keep)
    return reduce(and_, masks) if masks else None, bias


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """Return the context by PyTorch's kernel, which stores no scores."""
    # The kernel's own causal mask starts at the upper left corner, and is
    # multiplied by the scale: it fails unless that is positive. (An `if`
    # makes a plain bool of what a compiler knows as a symbol only.)
    own = False
    alone = mask is None and bias is None and scale > 1e-30
    if is_causal and alone and query.shape[-2] == key.shape[-2]:
        own = True
    causal = is_causal and not own
    mask, bias = join_masks(mask, bias, causal, query, key)
    if mask is not None:
        key, value = hide_unseen(key, value, mask)

    dtype, leading, grouped = value.dtype, query.shape[:-2], False
    if not leading == key.shape[:-2] == value.shape[:-2]:
        grouped = query.dim() == 4 and 1 < key.shape[1] < query.shape[1]
        query, key, value = _broadcast_leading(query, key, value, grouped)
        leading = query.shape[:-2]
    query, key, value = _kernel_types(query, key, value, bias, dropout_p)
    dead = None
    if mask is not None:
        mask, dead = _revive(mask)
        if bias is not None:
            mask = torch.where(mask, bias.to(query.dtype), -math.inf)
    elif bias is not None:
        mask = bias.to(query.dtype)
    with no_autocast(query.device):
        context = F.scaled_dot_product_attention(
            _as_four_axes(query, len(leading)),
            _as_four_axes(key, len(leading)),
            _as_four_axes(value, len(leading)),
            attn_mask=None if mask is None else _kernel_mask(mask, leading),
            dropout_p=dropout_p,
            is_causal=own,
            scale=scale,
            enable_gqa=grouped,
        )
    if len(leading) != 2:
        context = context.reshape(*leading, *context.shape[-2:])
    if dead is not None:
        context = context.masked_fill(dead, 0.0)
    return context.to(dtype)


def _broadcast_leading(
    query: Tensor, key: Tensor, value: Tensor, grouped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Expand the axes before the last two, those of grouped heads apart."""
    inner = 3 if grouped else 2
    outer = torch.broadcast_shapes(
        query.shape[:-inner], key.shape[:-inner], value.shape[:-inner]
    )
    query, key, value = (
        tensor.expand(*outer, *tensor.shape[-inner:])
        for tensor in (query, key, value)
    )
    return query, key, value


def _as_four_axes(tensor: Tensor, rank: int) -> Tensor:
    """View as ``(batch, heads, T, width)``: kernels know no other rank."""
    if rank == 2:
        return tensor
    if rank < 2:
        return tensor[(None,) * (2 - rank)]
    return tensor.flatten(0, -4)


def _kernel_mask(mask: Tensor, leading: torch.Size) -> Tensor:
    """Bring a mask that broadcasts to the scores to the kernel's rank."""
    if mask.dim() < 2:
        mask = mask.reshape(1, -1)
    if len(leading) > 2 and mask.dim() > 3:
        mask = mask.expand(*leading[:-1], *mask.shape[-3:])
    return _as_four_axes(mask, mask.dim() - 2)


def num_groups(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Say how many query heads share each key head."""
    if min(query.dim(), key.dim(), value.dim()) < 3:
        return 1
    heads, fewer = query.shape[-3], key.shape[-3]
    shared = fewer < heads and fewer == value.shape[-3] != 0
    return heads // fewer if shared else 1


def fold_groups(
    query: Tensor, mask: Tensor | None, bias: Tensor | None, groups: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Lay the query heads that share a key head below one another.

    ``(..., H, Tq, d)`` becomes ``(..., H / groups, groups * Tq, d)``, so
    that no key is copied for each of them; likewise mask and bias.
    """
    if groups == 1:
        return query, mask, bias
    heads, length = query.shape[-3:-1]

    def fold(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.dim() < 2:
            return tensor
        tensor = tensor[(None,) * (3 - tensor.dim())]
        if tensor.shape[-3] == tensor.shape[-2] == 1:
            return tensor
        own = groups if tensor.shape[-3] == 1 else heads
        tensor = tensor.expand(*tensor.shape[:-3], own, length, -1)
        return tensor.unflatten(-3, (-1, groups)).flatten(-3, -2)

    folded = query.unflatten(-3, (-1, groups)).flatten(-3, -2)
    return folded, fold(mask), fold(bias)


def unfold_groups(groups: int, *folded: Tensor) -> tuple[Tensor, ...]:
    """Undo ``fold_groups``."""
    return tuple(
        tensor.unflatten(-2, (groups, -1)).flatten(-4, -3) for tensor in folded
    )


# One block of tanh(query + key) holds about this many numbers: few MiB of
# float32 stay in a processor's cache, and 64 MiB keep an accelerator busy.
_BLOCK_CPU = 2**19
_BLOCK_OTHER = 2**24


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Return ``tanh(query + key) @ vector`` for each pair of positions.

    The numbers inside, ``(..., Tq, Tk, hidden)``, never exist all at once:
    they are computed in blocks of queries, and again in the backward pass.
    """
    limit = _BLOCK_CPU if query.device.type == "cpu" else _BLOCK_OTHER
    batch = math.prod(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]))
    rows = max(1, limit // max(1, batch * key.shape[-2] * key.shape[-1]))
    if rows >= query.shape[-2] or not torch.is_grad_enabled():
        blocks = [_additive(q, key, vector) for q in query.split(rows, -2)]
        return torch.cat(blocks, -2)
    block = partial(checkpoint, _additive, use_reentrant=False)
    try:
        blocks = [block(q, key, vector) for q in query.split(rows, -2)]
        return torch.cat(blocks, -2)
    except RuntimeError:  # transforms such as vmap: all at once
        return _additive(query, key, vector)


def _additive(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return (query[..., :, None, :] + key[..., None, :, :]).tanh_() @ vector
