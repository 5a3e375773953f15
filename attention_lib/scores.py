# Written by tools/export.py from these cells, to be edited there:
# 03_scoring.ipynb, 04_scaling.ipynb
"""Score functions: how well does each query match each key?

Every function and module here maps queries ``(..., Tq, d_q)`` and keys
``(..., Tk, d_k)`` to scores ``(..., Tq, Tk)``, and any of them is a
``score`` for :func:`~attention_lib.attention.attend`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_lib._checks import (
    check_no_tangent,
    check_number,
    check_sizes,
    check_type,
)
from attention_lib.attention import _autocasts
from attention_lib.attention import _widen as _wide

__all__ = [
    "AdditiveScore",
    "BilinearScore",
    "dot_score",
    "scaled_dot_score",
]


def _check_pair(
    query: Tensor,
    key: Tensor,
    query_dim: int | None = None,
    key_dim: int | None = None,
) -> None:
    """Refuse a query and a key that no score function can compare."""
    for name, tensor in (("query", query), ("key", key)):
        check_type(name, tensor, Tensor, "a torch.Tensor")
        if not tensor.is_floating_point():
            raise TypeError(
                f"{name} must hold floating-point numbers, got "
                f"{tensor.dtype}; did you pass token ids?"
            )
        if tensor.dim() < 2:
            raise ValueError(
                f"{name} must have shape (..., length, width), got "
                f"{tuple(tensor.shape)}"
            )
    if query.device != key.device:
        raise ValueError(
            f"query and key must be on one device, got {query.device} "
            f"and {key.device}"
        )
    if query_dim is not None and query.shape[-1] != query_dim:
        raise ValueError(
            f"query must have width query_dim={query_dim}, got shape "
            f"{tuple(query.shape)}"
        )
    if key_dim is not None and key.shape[-1] != key_dim:
        raise ValueError(
            f"key must have width key_dim={key_dim}, got shape "
            f"{tuple(key.shape)}"
        )
    shared = min(query.dim(), key.dim())
    pairs = zip(query.shape[-shared:-2], key.shape[-shared:-2], strict=True)
    for query_size, key_size in pairs:
        if query_size != key_size and 1 not in (query_size, key_size):
            raise ValueError(
                "the leading dimensions of query and key must broadcast, "
                f"got query {tuple(query.shape)} and key {tuple(key.shape)}"
            )


def _widen(*tensors: Tensor) -> list[Tensor]:
    """Cast to one dtype, float32 or wider: half precision overflows here."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def _no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keep autocast from narrowing the numbers again."""
    if _autocasts(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def dot_score(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
) -> Float[Tensor, "*#batch Tq Tk"]:
    """Compare by the dot product: ``scores[i, j] = query[i] · key[j]``.

    Luong's *dot*. It has no parameters, so query and key need one width and
    a common meaning for each coordinate. It does not scale.

    Args:
        query: Queries, shape ``(..., Tq, d_k)``.
        key: Keys, shape ``(..., Tk, d_k)``; the leading dimensions broadcast
            against those of ``query``.

    Returns:
        Scores, shape ``(..., Tq, Tk)``, in float32 for half-precision input.

    Raises:
        TypeError: If an argument is not floating point.
        ValueError: If widths, leading dimensions or devices do not fit.

    References:
        Luong, Pham and Manning (2015), *Effective Approaches to
        Attention-based Neural Machine Translation*, equation 8.

    Example:
        >>> import torch
        >>> query = torch.tensor([[1.0, 2.0]])
        >>> key = torch.tensor([[1.0, 0.0], [3.0, 1.0]])
        >>> dot_score(query, key)
        tensor([[1., 5.]])

    Built in :ref:`section 3.3 <sec-multiplicative>`.
    """
    _check_pair(query, key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must have equal widths for a dot product, got "
            f"query {tuple(query.shape)} and key {tuple(key.shape)}; "
            "BilinearScore compares different widths"
        )
    with _no_autocast(query.device):
        query, key = _widen(query, key)
        return query @ key.transpose(-2, -1)


class BilinearScore(nn.Module):
    """Compare through a learned matrix: ``query[i] · weight · key[j]``.

    Luong's *general*. The matrix translates from the coordinates of the
    query into those of the key, so the two may have different widths.

    Args:
        query_dim: Width of the queries.
        key_dim: Width of the keys.

    Attributes:
        weight: The matrix, shape ``(query_dim, key_dim)``.

    Raises:
        ValueError: If a width is not positive; when called, also if query
            or key do not have the widths given here.
        TypeError: When called, if an argument is not floating point.

    References:
        Luong, Pham and Manning (2015), *Effective Approaches to
        Attention-based Neural Machine Translation*, equation 8.

    Example:
        >>> import torch
        >>> score = BilinearScore(query_dim=3, key_dim=5)
        >>> score(torch.randn(2, 4, 3), torch.randn(2, 7, 5)).shape
        torch.Size([2, 4, 7])

    Built in :ref:`section 3.3 <sec-multiplicative>`.
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        check_sizes(query_dim=query_dim, key_dim=key_dim)
        self.query_dim = query_dim
        self.key_dim = key_dim
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw ``weight`` as :class:`torch.nn.Linear` draws its own."""
        bound = 1 / math.sqrt(self.query_dim)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        query: Float[Tensor, "*#batch Tq d_q"],
        key: Float[Tensor, "*#batch Tk d_k"],
    ) -> Float[Tensor, "*#batch Tq Tk"]:
        """Return scores ``(..., Tq, Tk)``; float32 for half input."""
        _check_pair(query, key, self.query_dim, self.key_dim)
        with _no_autocast(query.device):
            query, key, weight = _widen(query, key, self.weight)
            return query @ weight @ key.transpose(-2, -1)

    def extra_repr(self) -> str:
        """Show the widths when the module is printed."""
        return f"query_dim={self.query_dim}, key_dim={self.key_dim}"


# One block of tanh(query + key) holds about this many numbers: 1 MiB of
# float32 stays in a core's cache, and 64 MiB keeps an accelerator busy.
_BLOCK_CPU = 2**18
_BLOCK_OTHER = 2**24


def _blocks(query: Tensor, key: Tensor) -> tuple[Tensor, int, int]:
    """Reserve the buffer; say how many batch rows and queries it holds."""
    batch, num_queries, hidden = query.shape
    per_query = max(1, key.shape[1] * hidden)
    limit = _BLOCK_CPU if query.device.type == "cpu" else _BLOCK_OTHER
    queries = max(1, min(num_queries, limit // per_query))
    rows = 1
    if queries == num_queries:
        rows = max(1, min(batch, limit // (queries * per_query)))
    buffer = query.new_empty(rows * queries * per_query)
    return buffer, rows, queries


def _tanh_block(buffer: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Compute tanh(query + key) for one block, inside the buffer."""
    rows, queries, hidden = query.shape
    shape = (rows, queries, key.shape[1], hidden)
    block = buffer[: math.prod(shape)].view(shape)
    torch.add(query[:, :, None], key[:, None], out=block)
    return block.tanh_()


# The name of the module is part of the operators' names, so that a notebook
# that defines them again does not replace those of the package.
_LIBRARY = __name__.replace(".", "_")


@torch.library.custom_op(
    f"{_LIBRARY}::additive",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor vector) -> Tensor",
)
def _additive(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Score projected queries (B, Tq, h) and keys (B, Tk, h) in blocks."""
    scores = query.new_empty(query.shape[0], query.shape[1], key.shape[1])
    buffer, rows, queries = _blocks(query, key)
    for row in range(0, query.shape[0], rows):
        keys = key[row : row + rows]
        for start in range(0, query.shape[1], queries):
            part = query[row : row + rows, start : start + queries]
            block = _tanh_block(buffer, part, keys)
            scores[row : row + rows, start : start + queries] = block @ vector
    return scores


@_additive.register_fake
def _(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], key.shape[1])


@torch.library.custom_op(
    f"{_LIBRARY}::additive_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor query, Tensor key, Tensor vector)"
    " -> (Tensor, Tensor, Tensor)",
)
def _additive_backward(
    grad: Tensor, query: Tensor, key: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Recompute each block; add up the gradients of its three inputs.

    With t = tanh(q + k) and g the gradient of a score, the chain rule gives
    g·t for the vector and g·(1 - t²)·vector for query and key. The sums of
    g·1 and the factor `vector` wait until the blocks are done.
    """
    grad_query = torch.empty_like(query)
    squares = torch.zeros_like(key)
    grad_vector = torch.zeros_like(vector)
    buffer, rows, queries = _blocks(query, key)
    for row in range(0, query.shape[0], rows):
        keys = key[row : row + rows]
        for start in range(0, query.shape[1], queries):
            part = query[row : row + rows, start : start + queries]
            weight = grad[row : row + rows, start : start + queries]
            block = _tanh_block(buffer, part, keys)
            flat = block.view(-1, block.shape[-1])
            grad_vector += weight.reshape(-1) @ flat
            block.square_().mul_(weight[..., None])
            grad_query[row : row + rows, start : start + queries] = block.sum(
                2
            )
            squares[row : row + rows] += block.sum(1)
    grad_query = (grad.sum(2)[..., None] - grad_query) * vector
    grad_key = (grad.sum(1)[..., None] - squares) * vector
    return grad_query, grad_key, grad_vector


@_additive_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(query),
        torch.empty_like(key),
        torch.empty_like(vector),
    )


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _additive_backward(
        grad, *ctx.saved_tensors
    )
    return gradients


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError(
        "AdditiveScore has first derivatives only; for second ones, write "
        "the score as (tanh(query_proj(query)[..., :, None, :] + "
        "key_proj(key)[..., None, :, :]) @ vector"
    )


_additive.register_autograd(_differentiate, setup_context=_remember)
_additive_backward.register_autograd(_refuse)


class AdditiveScore(nn.Module):
    """Compare by a small network: ``vector · tanh(query' + key')``.

    Bahdanau's score, and Luong's *concat*. ``query'`` and ``key'`` are the
    linear maps of a query and a key to ``hidden_dim``, so the two may have
    different widths. The network runs once for each pair, but the numbers
    inside it, ``(..., Tq, Tk, hidden_dim)``, never exist all at once: they
    are computed in blocks of queries and again in the backward pass. Memory
    grows with ``Tq * Tk``, as for a dot product. There are first derivatives
    only, by ``backward()`` and not in forward mode.

    Args:
        query_dim: Width of the queries.
        key_dim: Width of the keys.
        hidden_dim: Width of the hidden layer; any number.

    Attributes:
        query_proj: Linear map of the queries, without bias.
        key_proj: Linear map of the keys, without bias.
        vector: Weights of the hidden layer, shape ``(hidden_dim,)``.

    Raises:
        ValueError: If a width is not positive; when called, also if query
            or key do not have the widths given here.
        TypeError: When called, if an argument is not floating point.

    References:
        Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by
        Jointly Learning to Align and Translate*, appendix A.1.2.

    Example:
        >>> import torch
        >>> score = AdditiveScore(query_dim=3, key_dim=5, hidden_dim=8)
        >>> score(torch.randn(2, 4, 3), torch.randn(2, 7, 5)).shape
        torch.Size([2, 4, 7])

    Built in :ref:`section 3.4 <sec-additive-blocks>`.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        check_sizes(
            query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim
        )
        self.query_dim = query_dim
        self.key_dim = key_dim
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_proj = nn.Linear(key_dim, hidden_dim, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights as :class:`torch.nn.Linear` draws its own."""
        self.query_proj.reset_parameters()
        self.key_proj.reset_parameters()
        bound = 1 / math.sqrt(self.hidden_dim)
        nn.init.uniform_(self.vector, -bound, bound)

    def forward(
        self,
        query: Float[Tensor, "*#batch Tq d_q"],
        key: Float[Tensor, "*#batch Tk d_k"],
    ) -> Float[Tensor, "*#batch Tq Tk"]:
        """Return scores ``(..., Tq, Tk)``; float32 for half input."""
        _check_pair(query, key, self.query_dim, self.key_dim)
        with _no_autocast(query.device):
            query, key, to_query, to_key, vector = _widen(
                query,
                key,
                self.query_proj.weight,
                self.key_proj.weight,
                self.vector,
            )
            query, key = query @ to_query.T, key @ to_key.T
            check_no_tangent("AdditiveScore", query, key, vector)
            batch = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                query.shape[:-2], key.shape[:-2]
            )
            rows = math.prod(batch)
            scores: Tensor = _additive(
                query.expand(*batch, -1, -1).reshape(rows, *query.shape[-2:]),
                key.expand(*batch, -1, -1).reshape(rows, *key.shape[-2:]),
                vector,
            )
            return scores.view(*batch, *scores.shape[-2:])

    def extra_repr(self) -> str:
        """Show the widths when the module is printed."""
        return (
            f"query_dim={self.query_dim}, key_dim={self.key_dim}, "
            f"hidden_dim={self.hidden_dim}"
        )


def _fits(small: Sequence[int], large: Sequence[int]) -> bool:
    """Tell whether one shape broadcasts to another without enlarging it."""
    if len(small) > len(large):
        return False
    tail = large[len(large) - len(small) :]
    return all(s in (1, n) for s, n in zip(small, tail, strict=True))


def scaled_dot_score(
    query: Float[Tensor, "*#batch Tq d_k"],
    key: Float[Tensor, "*#batch Tk d_k"],
    *,
    scale: float | Tensor | None = None,
) -> Float[Tensor, "*#batch Tq Tk"]:
    """Compare by the dot product, divided by the root of the width.

    With independent components of mean 0 and variance 1 the scores have
    variance 1 at any width. Half-precision input is widened before it is
    multiplied, so the products cannot overflow.

    Args:
        query: Queries, shape ``(..., Tq, d_k)``.
        key: Keys, shape ``(..., Tk, d_k)``; the leading dimensions broadcast
            against those of ``query``.
        scale: What the dot products are *multiplied* by; by default
            ``1 / sqrt(d_k)`` with the width of the query, which in
            multi-head attention is that of one head. A tensor, such as a
            learned scale, broadcasts against ``query``: ``(H, 1, 1)`` gives
            each head its own.

    Returns:
        Scores, shape ``(..., Tq, Tk)``, in float32 for half-precision input.

    Raises:
        TypeError: If ``query`` or ``key`` is not floating point, or
            ``scale`` is neither a number nor a tensor.
        ValueError: If widths, leading dimensions or devices do not fit.

    References:
        Vaswani et al. (2017), *Attention Is All You Need*, section 3.2.1.

    Example:
        >>> query = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
        >>> key = torch.tensor([[1.0, 2.0, 0.0, 1.0]])
        >>> scaled_dot_score(query, key)
        tensor([[2.]])
        >>> scaled_dot_score(query, key, scale=1.0)
        tensor([[4.]])

    Built in :ref:`section 4.3 <sec-root-not-width>`.
    """
    check_type("query", query, Tensor, "a torch.Tensor")
    if scale is None:
        width = query.shape[-1:].numel()
        scale = 1.0 / math.sqrt(width) if width else 1.0
    elif isinstance(scale, bool) or not isinstance(
        scale, (int, float, Tensor)
    ):
        raise TypeError(
            f"scale must be a number or a tensor, got {type(scale).__name__}"
        )
    if not isinstance(scale, Tensor):
        check_number("scale", scale)
    elif not _fits(scale.shape, query.shape):
        raise ValueError(
            f"scale of shape {tuple(scale.shape)} does not broadcast to "
            f"query of shape {tuple(query.shape)}"
        )
    if query.is_floating_point():  # dot_score refuses anything else
        wide = _wide(query)
        # Less work than scaling the scores if d_k < Tk, and no second copy
        # of the large Tq x Tk matrix in any case.
        query = wide * (
            scale.to(wide.dtype) if isinstance(scale, Tensor) else scale
        )
    return dot_score(query, key)
