"""The engine of block-wise attention: which blocks, in what order, and back.

``online_softmax`` of chapter 8 takes in one block of scores after another.
Here lies what hands it the blocks, leaves out those that nobody may see,
and computes them again for the gradients, so that all never exist at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_lib import _numerics, efficient
from attention_lib._checks import (
    check_attention,
    check_sizes,
    check_tensor,
    truth,
)

# One block of scores holds about this many numbers: half a MiB of float32
# stays in the processor's cache, and 64 MiB keeps an accelerator busy.
_BLOCK_CPU = 2**17
_BLOCK_OTHER = 2**24

Place = tuple[Any, ...]  # one sample, some of its heads, some positions


class Job(NamedTuple):
    """What attends to what; the queries of a group share a head of keys."""

    query: Tensor  # (..., H, Tq, group, d), scaled
    key: Tensor  # (..., H, Tk, d)
    value: Tensor  # (..., H, Tk, d_v)
    bias: Tensor | None  # (..., H, Tq, group, Tk), or 1 for any of these
    mask: Tensor | None
    is_causal: bool
    window: int | None
    block_size: int

    def walk(self) -> Iterator[tuple[Place, Iterator[tuple[Place, Tensor]]]]:
        """Yield places of queries, each with its blocks."""
        *outer, heads, length, group, _ = self.query.shape
        on_cpu = self.query.device.type == "cpu"
        fits = (_BLOCK_CPU if on_cpu else _BLOCK_OTHER) // group
        fits //= max(1, min(self.block_size, self.key.shape[-2]))
        high = max(1, min(fits, self.block_size, length))
        if self.window is not None:  # higher ones are mostly out of sight
            high = min(high, max(self.window, 64))
        some = max(1, fits // high)
        starts = range(0, heads, some), range(0, length, high)
        for *sample, head, row in product(*map(range, outer), *starts):
            rows = slice(row, min(row + high, length))
            place = *sample, slice(head, head + some), rows
            yield place, self.blocks(place)

    def blocks(self, place: Place) -> Iterator[tuple[Place, Tensor]]:
        """Yield places of keys with their scores: (heads, rows, keys)."""
        *sample, rows = place
        queries, device = self.query[place].flatten(1, 2), self.query.device
        length, num_keys = self.query.shape[-3], self.key.shape[-2]
        # Queries stand beside keys, the last beside the last.
        first = rows.start + num_keys - length
        last = rows.stop - 1 + num_keys - length
        before = num_keys + length if self.window is None else self.window - 1
        after = 0 if self.is_causal else before
        end = min(num_keys, last + after + 1)
        for start in range(max(0, first - before), end, self.block_size):
            stop = min(start + self.block_size, end)
            at, seen = (*sample, slice(start, stop)), None
            if start < last - before or stop > first + after + 1:
                position = torch.arange(first, last + 1, device=device)
                ahead = torch.arange(start, stop, device=device)
                ahead = ahead - position[:, None, None]
                seen = (ahead >= -before) & (ahead <= after)
            if self.mask is not None:
                own = _cut(self.mask, place, at)
                seen = own if seen is None else seen & own
                if device.type == "cpu":  # a GPU would have to be waited for
                    least, most = seen.view(torch.uint8).aminmax()
                    if most == 0:
                        continue
                    seen = None if least == 1 else seen
            scores = queries @ self.key[at].mT
            block = scores.unflatten(1, (rows.stop - rows.start, -1))
            if self.bias is not None:
                block += _cut(self.bias, place, at)
            if seen is not None:
                block.masked_fill_(~seen, -math.inf)
            yield at, scores

    def forward(self) -> list[Tensor]:
        """Return the context, and the log-sum-exp of each row of scores."""
        context, lse = self.results()
        for place, blocks in self.walk():
            pairs = ((scores, self.value[at]) for at, scores in blocks)
            for first in pairs:  # if there is one
                result = efficient.online_softmax(chain([first], pairs))
                context[place].flatten(1, 2).copy_(result[0])
                lse[place].flatten(1, 2).copy_(result[1])
        return [context, lse]

    def backward(
        self, grad: Tensor, context: Tensor, lse: Tensor
    ) -> list[Tensor]:
        """Compute each block again; add up the gradients of the inputs."""
        sums = grad_query, grad_key, grad_value, grad_bias = self.gradients()
        # Less infinity, all scores of a row that sees nothing weigh 0.
        lse = lse.masked_fill(lse == -math.inf, math.inf)
        mean = (grad * context).sum(-1, keepdim=True)
        tensors = self.query, grad, mean, lse, grad_query
        for place, blocks in self.walk():
            query, above, average, total, change = (
                tensor[place].flatten(1, 2) for tensor in tensors
            )
            for at, scores in blocks:
                weights = scores.sub_(total).exp_()
                grad_value[at].add_(weights.mT @ above)
                slopes = above @ self.value[at].mT
                slopes.sub_(average).mul_(weights)
                change.add_(slopes @ self.key[at])
                grad_key[at].add_(slopes.mT @ query)
                if self.bias is not None:
                    part = _cut(grad_bias, place, at)
                    slopes = slopes.unflatten(1, (-1, self.query.shape[-2]))
                    part.add_(slopes.sum_to_size(part.shape))
        return list(sums)

    def results(self) -> list[Tensor]:
        """Make room for what the pass forward returns."""
        rows = self.query.shape[:-1]
        lse = self.query.new_full((*rows, 1), -math.inf)
        return [self.value.new_zeros(*rows, self.value.shape[-1]), lse]

    def gradients(self) -> list[Tensor]:
        """Make room for what the pass back returns."""
        bias = self.query[:0] if self.bias is None else self.bias
        inputs = self.query, self.key, self.value, bias
        return [tensor.new_zeros(tensor.shape) for tensor in inputs]


def _cut(tensor: Tensor, place: Place, at: Place) -> Tensor:
    """Take a block of a mask or bias: all of an axis of length 1."""
    parts = (*place, slice(None), at[-1])
    alone = [0] * (len(place) - 2) + [slice(None)] * 4
    choices = zip(tensor.shape, parts, alone, strict=True)
    return tensor[tuple(own if n > 1 else one for n, own, one in choices)]


@torch.library.custom_op(
    "attention_lib::blockwise",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor? bias, "
    "Tensor? mask, bool is_causal, int? window, int block_size, "
    "Tensor? grad, Tensor? context, Tensor? lse) -> Tensor[]",
)
def _run(*inputs: Any) -> list[Tensor]:
    job, back = Job(*inputs[:8]), inputs[8:]
    with _numerics.no_autocast(job.query.device):
        return job.forward() if back[0] is None else job.backward(*back)


@_run.register_fake
def _(*inputs: Any) -> list[Tensor]:
    job = Job(*inputs[:8])
    return job.results() if inputs[8] is None else job.gradients()


class _Pass(torch.autograd.Function):
    """One pass, there or back, for autograd, torch.func and a compiler."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return tuple(_run(*inputs[-11:]))  # a compiler may put ctx before

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.options = inputs[5:8]
        ctx.save_for_backward(*inputs[:5], inputs[8], *output[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        *inputs, back, context, lse = ctx.saved_tensors
        if back is not None:
            raise NotImplementedError(
                "blockwise_attention has first derivatives only; "
                "scaled_dot_product_attention with need_weights=True has all"
            )
        *sums, bias = _apply(*inputs, *ctx.options, grad, context, lse)
        return *sums, None if inputs[3] is None else bias, *[None] * 7

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        """Take one sample after the other."""
        results = []
        for index in range(info.batch_size):
            own = (
                part if axis is None else part.select(axis, index)
                for part, axis in zip(inputs, in_dims, strict=True)
            )
            results.append(_apply(*own))
        stacked = [torch.stack(parts) for parts in zip(*results, strict=True)]
        return tuple(stacked), (0,) * len(stacked)


def _apply(*inputs: Any) -> tuple[Tensor, ...]:
    return _Pass.apply(*inputs)  # type: ignore[no-untyped-call]


def attend_in_blocks(
    query: Any, key: Any, value: Any, bias: Any, mask: Any,
    scale: float | None, is_causal: bool, window: int | None, block_size: int,
) -> Tensor:  # fmt: skip
    """Return the context; leading axes broadcast, key heads may be fewer."""
    check_sizes(block_size=block_size, window=1 if window is None else window)
    mask, bias = check_attention(
        query, key, value, mask, bias, is_causal=is_causal
    )
    ranks = {query.dim(), key.dim(), value.dim()}
    query, key, value, bias, mask = (
        None if each is None else each[(None,) * (max(3, *ranks) - each.dim())]
        for each in (query, key, value, bias, mask)
    )
    hides = bias is not None or mask is not None
    if hides and not truth((key.sum() + value.sum()).isfinite()):
        # A weight of 0 would spread NaN. (The last query sees all keys, so
        # causality hides none from all of them, unless a mask has rows.)
        causal = is_causal and (bias is not None or mask.shape[-2] > 1)
        seen, _ = _numerics.join_masks(mask, bias, causal, query, key)
        if seen is not None:
            key, value = _numerics.hide_unseen(key, value, seen)
    dtype, groups = query.dtype, _numerics.num_groups(query, key, value)
    query, key, value = map(_numerics.widen, (query, key, value))
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))

    def group(heads: Any) -> Any:
        """Move the heads that share a key head behind the positions."""
        own = groups if heads.shape[-3] > 1 else 1
        heads = heads.unflatten(-3, (heads.shape[-3] // own, own))
        return heads.transpose(-2, -3)

    query = group(query * scale)
    outer = torch.broadcast_shapes(
        query.shape[:-3], key.shape[:-2], value.shape[:-2]
    )
    context, _ = _apply(
        query.expand(*outer, *query.shape[-3:]),
        key.expand(*outer, *key.shape[-2:]),
        value.expand(*outer, *value.shape[-2:]),
        None if bias is None else group(bias.to(query.dtype)),
        None if mask is None else group(mask),
        *(is_causal, window, block_size),
        *(None, None, None),
    )
    context = context.transpose(-2, -3).flatten(-4, -3).to(dtype)
    return context if max(ranks) > 2 else context[0]


def refuse_weights(need_weights: bool, dropout_p: float) -> None:
    """Refuse what asks for all weights."""
    if need_weights or dropout_p:
        raise ValueError(
            "blockwise_attention never holds all weights, to return or drop: "
            f"got need_weights={need_weights}, dropout_p={dropout_p}. Call "
            "scaled_dot_product_attention, or make the layer with dropout=0"
        )


def one_row(mask: Tensor | None) -> Tensor | None:
    """Refuse a mask that differs between queries."""
    if mask is not None and mask.dim() > 1 and mask.shape[-2] > 1:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} differs between queries; "
            "linear attention sums over the keys before it knows the query, "
            "so it takes (..., 1, Tk) only"
        )
    return mask[None] if mask is not None and mask.dim() == 1 else mask


def check_kept(key: Tensor, value: Tensor, stores: list[Tensor]) -> None:
    """Refuse keys and values that do not belong to those in a cache."""
    check_tensor("key", key, "floating-point", "(B, H_kv, new, d_k)")
    check_tensor("value", value, "floating-point", "(B, H_kv, new, d_v)")
    if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
        raise ValueError(
            "key or value requires a gradient, and a cache overwrites what it "
            "would need: decode under torch.no_grad(), train without a cache"
        )
    new, old = (
        [(x.shape[:2], x.shape[3], x.dtype, x.device) for x in tensors]
        for tensors in ((key, value), stores)
    )
    if key.shape[:3] != value.shape[:3] or old not in ([], new):
        raise ValueError(
            "key and value must have one shape but for their widths, and "
            f"those of the cache: got {tuple(key.shape)}, {tuple(value.shape)}"
            f" of {key.dtype} on {key.device}, and it holds (B, H_kv), width, "
            f"type and device {old}"
        )
