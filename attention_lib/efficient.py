# Written by tools/export.py from these cells, to be edited there:
# 08_efficiency.ipynb
"""What attention costs less: blocks, caches, windows and low rank.

:func:`blockwise_attention` gives the answer of
:func:`~attention_lib.attention.scaled_dot_product_attention` in memory that
grows with the length instead of its square. :func:`linear_attention` changes
the answer to save more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_lib._checks import (
    check_no_tangent,
    check_sizes,
    check_type,
)
from attention_lib.attention import (
    _autocasts,
    _check_inputs,
    _check_options,
    _check_types,
)
from attention_lib.masks import causal_mask

__all__ = [
    "blockwise_attention",
    "linear_attention",
]

# One block of scores holds about this many numbers: 1 MiB of float32 stays
# in the processor's cache, and 64 MiB keeps an accelerator busy.
_BLOCK_CPU = 2**18
_BLOCK_OTHER = 2**24


class _Walk:
    """The blocks of the scores that some query may look at, in order.

    Args:
        query: ``(rows, Tq, d_k)``; the walk needs its shape and device only.
        key: ``(rows, Tk, d_k)``.
        mask: ``(masks, Tq or 1, Tk or 1)`` or ``None``.
        which: The mask of each row, ``(rows,)``, or ``None``.
        is_causal: Whether a key may not be later than the query.
        window: Distances from this on are hidden, or ``None``.
        block_size: Number of keys in a block.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        which: Tensor | None,
        is_causal: bool,
        window: int | None,
        block_size: int,
    ) -> None:
        self.mask, self.which = mask, which
        self.is_causal, self.window = is_causal, window
        self.device = query.device
        self.num_rows, self.num_queries = query.shape[:2]
        self.num_keys = key.shape[1]
        self.offset = self.num_keys - self.num_queries
        on_cpu = query.device.type == "cpu"
        limit = _BLOCK_CPU if on_cpu else _BLOCK_OTHER
        self.keys = max(1, min(block_size, self.num_keys))
        self.queries = max(1, min(limit // self.keys, self.num_queries))
        if window is not None:
            # A block much taller than the window is mostly out of sight.
            self.queries = min(self.queries, max(window, 64))
        if mask is not None and mask.shape[1] > 1:
            # A square block is hidden as a whole more often than a tall one.
            self.queries = min(self.queries, self.keys)
        per_row = self.queries * self.keys
        self.rows = max(1, min(limit // per_row, self.num_rows))
        self.size = self.rows * per_row
        self._remembered: tuple[tuple[int, int, int], Tensor] | None = None

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        """Yield groups of rows and queries."""
        for row in range(0, self.num_rows, self.rows):
            rows = slice(row, min(row + self.rows, self.num_rows))
            for start in range(0, self.num_queries, self.queries):
                stop = min(start + self.queries, self.num_queries)
                yield rows, slice(start, stop)

    def blocks(
        self, rows: slice, queries: slice
    ) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield the keys of each block, and what is hidden in it.

        ``None`` means nothing; blocks that are hidden as a whole are left
        out.
        """
        earliest = queries.start + self.offset
        latest = queries.stop - 1 + self.offset
        first, last = 0, self.num_keys
        if self.window is not None:
            first = max(first, earliest - self.window + 1)
            last = min(last, latest + self.window)
        if self.is_causal:
            last = min(last, latest + 1)
        for start in range(first, last, self.keys):
            keys = slice(start, min(start + self.keys, last))
            hidden = self._far(earliest, latest, keys)
            if self.mask is not None:
                masked = self._masked(rows, queries, keys)
                hidden = masked if hidden is None else hidden | masked
                # A look at the mask is cheap, except that it would make
                # the CPU wait for a GPU.
                if self.device.type == "cpu":
                    least, most = hidden.view(torch.uint8).aminmax()
                    if least == 1:
                        continue
                    hidden = None if most == 0 else hidden
            yield keys, hidden

    def _far(self, earliest: int, latest: int, keys: slice) -> Tensor | None:
        """Apply causality and window to a block that their edge crosses.

        The queries of the block stand at the positions ``earliest`` to
        ``latest``.
        """
        window = self.window
        # How many keys after its own a query may see; None for all.
        reach = None if window is None else window - 1
        if self.is_causal:
            reach = 0
        all_later_seen = reach is None or keys.stop - 1 - earliest <= reach
        all_before_seen = window is None or latest - keys.start < window
        if all_later_seen and all_before_seen:
            return None
        # Counted from the first query, positions are mostly those of the
        # block before, and so is what is hidden.
        first_key, end_of_keys = keys.start - earliest, keys.stop - earliest
        num_queries = latest - earliest + 1
        edges = first_key, end_of_keys, num_queries
        if self._remembered is None or self._remembered[0] != edges:
            key = torch.arange(first_key, end_of_keys, device=self.device)
            query = torch.arange(num_queries, device=self.device)[:, None]
            hidden = None if reach is None else key > query + reach
            if window is not None:
                too_early = key <= query - window
                hidden = too_early if hidden is None else hidden | too_early
            assert hidden is not None
            self._remembered = edges, hidden
        return self._remembered[1]

    def _masked(self, rows: slice, queries: slice, keys: slice) -> Tensor:
        """Cut the block out of the mask, for the rows at hand."""
        assert self.mask is not None
        everything = slice(None)
        mask = self.mask[
            :,
            queries if self.mask.shape[1] > 1 else everything,
            keys if self.mask.shape[2] > 1 else everything,
        ]
        return ~(mask if self.which is None else mask[self.which[rows]])


def _scores(
    buffer: Tensor, query: Tensor, key: Tensor, hidden: Tensor | None
) -> Tensor:
    """Compute one block of scores inside the buffer."""
    shape = (query.shape[0], query.shape[1], key.shape[1])
    block = buffer[: math.prod(shape)].view(shape)
    torch.bmm(query, key.mT, out=block)
    return block if hidden is None else block.masked_fill_(hidden, -math.inf)


# The name of the module is part of the operators' names, so that a notebook
# that defines them again does not replace those of the package.
_LIBRARY = __name__.replace(".", "_")
_OPTIONS = (
    "Tensor? mask, Tensor? which, bool is_causal, int? window, "
    "float scale, int block_size"
)


@torch.library.custom_op(
    f"{_LIBRARY}::blockwise",
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, {_OPTIONS})"
    " -> (Tensor, Tensor)",
)
def _blockwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    which: Tensor | None,
    is_causal: bool,
    window: int | None,
    scale: float,
    block_size: int,
) -> tuple[Tensor, Tensor]:
    """Return the context and the log-sum-exp of each row of scores."""
    context = value.new_zeros(*query.shape[:2], value.shape[2])
    normaliser = query.new_empty(*query.shape[:2], 1)
    walk = _Walk(query, key, mask, which, is_causal, window, block_size)
    buffer = query.new_empty(walk.size)
    for rows, queries in walk:
        part = query[rows, queries] * scale
        mixed = context[rows, queries]
        total = part.new_zeros(*part.shape[:2], 1)
        largest = torch.full_like(total, -math.inf)
        for keys, hidden in walk.blocks(rows, queries):
            block = _scores(buffer, part, key[rows, keys], hidden)
            higher = torch.maximum(largest, block.amax(-1, keepdim=True))
            # A row that has seen no key yet has no maximum to subtract.
            shift = higher.masked_fill(higher == -math.inf, 0.0)
            block.sub_(shift).exp_()
            shrink = (largest - shift).exp_()
            total.mul_(shrink).add_(block.sum(-1, keepdim=True))
            mixed.mul_(shrink).baddbmm_(block, value[rows, keys])
            largest = higher
        dead = total == 0
        mixed.div_(total.masked_fill(dead, 1.0)).masked_fill_(dead, 0.0)
        # Less infinity, every score of a dead row gets the weight 0.
        total.log_().add_(largest).masked_fill_(dead, math.inf)
        normaliser[rows, queries] = total
    return context, normaliser


@_blockwise.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    shape = query.shape[:2]
    return value.new_empty(*shape, value.shape[2]), query.new_empty(*shape, 1)


@torch.library.custom_op(
    f"{_LIBRARY}::blockwise_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor query, Tensor key, Tensor value, "
    f"Tensor context, Tensor normaliser, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor)",
)
def _blockwise_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    normaliser: Tensor,
    mask: Tensor | None,
    which: Tensor | None,
    is_causal: bool,
    window: int | None,
    scale: float,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Recompute each block of weights; add up the gradients of the inputs."""
    grad_query, grad_key, grad_value = (
        torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for tensor in (query, key, value)
    )
    mean = (grad * context).sum(-1, keepdim=True)
    walk = _Walk(query, key, mask, which, is_causal, window, block_size)
    buffer, second = query.new_empty(2, walk.size)
    for rows, queries in walk:
        part, above = query[rows, queries] * scale, grad[rows, queries]
        for keys, hidden in walk.blocks(rows, queries):
            near, values = key[rows, keys], value[rows, keys]
            weights = _scores(buffer, part, near, hidden)
            weights.sub_(normaliser[rows, queries]).exp_()
            grad_value[rows, keys].baddbmm_(weights.mT, above)
            change = _scores(second, above, values, None)
            change.sub_(mean[rows, queries]).mul_(weights)
            grad_query[rows, queries].baddbmm_(change, near, alpha=scale)
            grad_key[rows, keys].baddbmm_(change.mT, part)
    return grad_query, grad_key, grad_value


@_blockwise_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    query, key, value, mask, which, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, *output, mask, which)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    gradients = _blockwise_backward(grad, *ctx.saved_tensors, *ctx.options)
    # Autograd wants one entry for each input, also where there is none: for
    # mask, which and the options.
    return (*gradients, None, None, *[None for _ in ctx.options])


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError(
        "blockwise_attention has first derivatives only; for second ones, "
        "use scaled_dot_product_attention with need_weights=True"
    )


_blockwise.register_autograd(_differentiate, setup_context=_remember)
_blockwise_backward.register_autograd(_refuse)


def _check_pairs(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Refuse what does not belong together; return the leading axes."""
    leading = _check_inputs(query, key, value)
    _check_types(query, key, value)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must have the same width, got query "
            f"{tuple(query.shape)} and key {tuple(key.shape)}"
        )
    return leading


def _as_rows(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Flatten the leading axes, after repeating what broadcasts."""
    tensor = tensor.expand(*leading, *tensor.shape[-2:])
    return tensor.reshape(math.prod(leading), *tensor.shape[-2:])


def blockwise_attention(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    value: Float[Tensor, "*#batch Tk d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    block_size: int = 512,
) -> Float[Tensor, "... Tq d_v"]:
    """Attend with scaled dot products, one block of scores at a time.

    The context and its gradients are those of
    :func:`~attention_lib.attention.scaled_dot_product_attention`; the
    ``(Tq, Tk)`` scores are never stored, so memory grows with the lengths and
    not with their product, in the backward pass too, which computes the
    blocks again. Blocks that ``is_causal`` or ``window`` hides are skipped;
    those that ``mask`` hides, on a CPU only, since a look at the mask would
    make it wait for a GPU. There are first derivatives only, by
    ``backward()`` and not in forward mode, and no weights.

    Args:
        query: ``(..., Tq, d_k)``; leading axes (batch, heads) broadcast.
        key: ``(..., Tk, d_k)``.
        value: ``(..., Tk, d_v)``.
        mask: boolean, ``True`` = may be attended, broadcastable to the
            scores ``(..., Tq, Tk)``.
        is_causal: also let query ``i`` see only keys
            ``j <= i + Tk - Tq``, as :func:`~attention_lib.masks.causal_mask`
            does.
        window: also let query ``i`` see only keys less than ``window``
            positions from ``i + Tk - Tq``, as :func:`sliding_window_mask`
            does. Time then grows with ``Tq * window``.
        scale: factor of the dot products, ``1 / sqrt(d_k)`` if omitted.
        block_size: number of keys in a block, and of queries too if
            ``mask`` differs between them. It changes the time and, in the
            last digits, the result.

    Returns:
        The context ``(..., Tq, d_v)``; 0 for a query that sees no key.
        Half-precision inputs are computed in float32.

    Raises:
        TypeError: if an argument has the wrong type or dtype.
        ValueError: if shapes or devices do not fit together, or a number
            is below 1.

    References:
        Milakov and Gimelshein (2018), algorithm 3; Rabe and Staats (2021);
        Dao et al. (2022), algorithm 1 and appendix B.

    Example:
        >>> query, key = torch.zeros(2, 3), torch.ones(4, 3)
        >>> blockwise_attention(
        ...     query, key, torch.eye(4), is_causal=True, block_size=2
        ... )
        tensor([[0.3333, 0.3333, 0.3333, 0.0000],
                [0.2500, 0.2500, 0.2500, 0.2500]])

    Built in :ref:`section 8.3 <sec-online-softmax>`.
    """
    leading = _check_pairs(query, key, value)
    _check_options(mask, None, scale, 0.0, query, key)
    check_type("is_causal", is_causal, bool, "True or False")
    check_sizes(block_size=block_size)
    if window is not None:
        check_sizes(window=window)
    if scale is None:
        scale = 1.0 / math.sqrt(max(query.shape[-1], 1))
    which = None
    if mask is not None:
        mask = mask.reshape(*[1] * (2 - mask.dim()), *mask.shape)
        masks = math.prod(mask.shape[:-2])
        if masks > 1:
            which = torch.arange(masks, device=mask.device)
            which = which.view(mask.shape[:-2]).expand(leading).flatten()
        mask = mask.reshape(masks, *mask.shape[-2:])
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    check_no_tangent("blockwise_attention", query, key, value)
    context, _ = _blockwise(
        _as_rows(query, leading),
        _as_rows(key, leading),
        _as_rows(value, leading),
        mask,
        which,
        is_causal,
        window,
        float(scale),
        block_size,
    )
    result: Tensor = context.view(*leading, *context.shape[-2:])
    return result.to(dtype)


def linear_attention(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    value: Float[Tensor, "*#batch Tk d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    chunk_size: int = 128,
) -> Float[Tensor, "... Tq d_v"]:
    """Attend with a score of low rank, in time linear in the length.

    In place of ``exp(q · k)`` stands ``f(q) · f(k)`` with
    ``f(x) = elu(x) + 1 > 0``. Then the sum over the keys can be done before
    a query is known: it is a matrix of ``d_k`` rows, however many keys there
    are. The weights are positive and sum to one, but they are *not* those
    of softmax attention, and a model has to be trained with them.

    Args:
        query: ``(..., Tq, d_k)``; leading axes (batch, heads) broadcast.
        key: ``(..., Tk, d_k)``.
        value: ``(..., Tk, d_v)``.
        mask: boolean, ``True`` = may be attended, the same for all
            queries: broadcastable to ``(..., 1, Tk)``.
        is_causal: also let query ``i`` see only keys ``j <= i + Tk - Tq``.
        chunk_size: how many queries are computed together in the causal
            case.

    Returns:
        The context ``(..., Tq, d_v)``; 0 for a query that sees no key.

    Raises:
        TypeError: if an argument has the wrong type or dtype.
        ValueError: if shapes or devices do not fit together, ``mask``
            differs between queries, or ``chunk_size`` is below 1.

    References:
        Katharopoulos et al. (2020), equations 4 to 12.

    Example:
        >>> same = torch.zeros(4, 3)
        >>> linear_attention(same[:2], same, torch.eye(4), is_causal=True)
        tensor([[0.3333, 0.3333, 0.3333, 0.0000],
                [0.2500, 0.2500, 0.2500, 0.2500]])

    Built in :ref:`section 8.8 <sec-low-rank>`.
    """
    _check_pairs(query, key, value)
    _check_options(mask, None, None, 0.0, query, key)
    check_type("is_causal", is_causal, bool, "True or False")
    check_sizes(chunk_size=chunk_size)
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    # elu(x) + 1, whose sum would round what is small below 0 to nothing.
    query, key = (
        torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (query, key)
    )
    if mask is not None:
        if mask.dim() > 1 and mask.shape[-2] > 1:
            raise ValueError(
                f"mask of shape {tuple(mask.shape)} differs between "
                "queries; linear attention sums over the keys before it "
                "knows the query, so only (..., 1, Tk) is possible"
            )
        if mask.dim() < 2:
            mask = mask.reshape(1, -1)
        key = key.masked_fill(~mask.mT, 0.0)
    # A last feature of ones makes the sum of the weights ride along.
    value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    device = query.device.type
    with (  # autocast would multiply in half precision
        torch.autocast(device, enabled=False)
        if _autocasts(device)
        else nullcontext()
    ):
        if is_causal:
            mixed = _linear_causal(query, key, value, chunk_size)
        else:
            mixed = query @ (key.mT @ value)
    context, total = mixed[..., :-1], mixed[..., -1:]
    return (context / total.masked_fill(total == 0, 1.0)).to(dtype)


def _linear_causal(
    query: Tensor, key: Tensor, value: Tensor, chunk_size: int
) -> Tensor:
    """Carry the sum over earlier keys from chunk to chunk of queries."""
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    offset = num_keys - num_queries
    state = key[..., :0, :].mT @ value[..., :0, :]  # of no key: zeros
    done, chunks = 0, []
    for start in range(0, num_queries, chunk_size):
        stop = min(start + chunk_size, num_queries)
        first, last = max(start + offset, 0), max(stop + offset, 0)
        earlier, own = slice(done, first), slice(first, last)
        state = state + key[..., earlier, :].mT @ value[..., earlier, :]
        part = query[..., start:stop, :]
        visible = causal_mask(
            stop - start,
            last - first,
            offset=start + offset - first,
            device=query.device,
        )
        scores = (part @ key[..., own, :].mT).masked_fill(~visible, 0.0)
        chunks.append(part @ state + scores @ value[..., own, :])
        done = first
    if not chunks:
        return query @ state
    return torch.cat(chunks, dim=-2)
