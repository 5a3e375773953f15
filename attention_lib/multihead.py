# Written by tools/export.py from these cells, to be edited there:
# 06_multihead.ipynb
"""Multi-head attention: project, split, attend in each head, merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib import interop
from attention_lib._checks import check_layer_call, check_layer_sizes
from attention_lib._numerics import hide_unseen
from attention_lib.attention import scaled_dot_product_attention

__all__ = [
    "MultiHeadAttention",
    "merge_heads",
    "split_heads",
]


def split_heads(
    features: Float[Tensor, "*batch T width"], num_heads: int
) -> Float[Tensor, "*batch H T d_head"]:
    """Cut ``(..., T, width)`` into heads ``(..., H, T, d_head)``, a view.

    Head ``h`` receives the features ``h * d_head`` to
    ``(h + 1) * d_head - 1`` of every position.

    >>> import torch
    >>> split_heads(torch.arange(6.0).view(1, 1, 6), 3).squeeze()
    tensor([[0., 1.],
            [2., 3.],
            [4., 5.]])

    Built in section 6.2 (sec-heads).
    """
    return features.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def merge_heads(
    heads: Float[Tensor, "*batch H T d_head"],
) -> Float[Tensor, "*batch T width"]:
    """Lay heads ``(..., H, T, d_head)`` side by side: ``(..., T, width)``.

    >>> import torch
    >>> x = torch.randn(2, 5, 6)
    >>> torch.equal(merge_heads(split_heads(x, 3)), x)
    True

    Built in section 6.2 (sec-heads).
    """
    return heads.transpose(-3, -2).flatten(-2)


def _projection(in_features: int, out_features: int, bias: bool) -> nn.Module:
    """Make a linear map that keeps the variance of its input."""
    linear = nn.Linear(in_features, out_features, bias=bias)
    nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


class MultiHeadAttention(nn.Module):
    """Attention in several heads at once.

    Projects ``d_model``, ``kdim``, ``vdim`` features to ``num_heads`` queries
    and ``num_kv_heads`` keys and values of width ``d_head`` (``d_model /
    num_heads`` if omitted), attends in each head, projects the heads back.
    ``rotary`` turns queries and keys by their positions; ``attention`` is
    any function with the signature of ``scaled_dot_product_attention``.
    Raises ValueError for sizes that do not divide.

    Source: Vaswani et al. (2017), section 3.2.2; Ainslie et al. (2023).

    >>> import torch
    >>> layer = MultiHeadAttention(d_model=12, num_heads=3)
    >>> output, weights = layer(torch.randn(2, 5, 12), need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]))

    Built in section 6.4 (sec-multihead-layer).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        d_head: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        rotary: nn.Module | None = None,
        attention: Callable[..., Any] = scaled_dot_product_attention,
    ) -> None:
        super().__init__()
        if num_kv_heads is None:
            num_kv_heads = num_heads
        check_layer_sizes(
            d_model, num_heads, num_kv_heads, d_head, bias, dropout
        )
        self.d_model, self.num_heads = d_model, num_heads
        self.num_kv_heads = num_kv_heads
        self.d_head = d_model // num_heads if d_head is None else d_head
        self.kdim = d_model if kdim is None else kdim
        self.vdim = d_model if vdim is None else vdim
        self.dropout, self.scale = dropout, scale
        self.rotary, self.attention = rotary, attention
        width, kv_width = num_heads * self.d_head, num_kv_heads * self.d_head
        self.query_proj = _projection(d_model, width, bias)
        self.key_proj = _projection(self.kdim, kv_width, bias)
        self.value_proj = _projection(self.vdim, kv_width, bias)
        self.output_proj = _projection(width, d_model, bias)

    def forward(
        self,
        query: Float[Tensor, "B Tq d_model"],
        key: Float[Tensor, "B Tk kdim"] | None = None,
        value: Float[Tensor, "B Tk vdim"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        positions: Int[Tensor, "... Tk"] | None = None,
        need_weights: bool = False,
        cache: Any = None,
    ) -> tuple[
        Float[Tensor, "B Tq d_model"], Float[Tensor, "B H Tq Tall"] | None
    ]:
        """Attend from ``query`` to ``key``, which is ``query`` if omitted.

        ``mask``, True = may be attended, is ``(Tq, Tk)``, ``(B, Tq or 1,
        Tk)`` or ``(B, H, Tq, Tk)``, where ``Tk`` counts cached keys too;
        ``bias`` is added to the scores. ``positions``, ``(Tk,)`` or
        ``(B, Tk)``, are those of the keys of this call, counted on from the
        cache if omitted; the queries have the last Tq of them. A cache of
        another sequence is filled once: then pass ``key[:, :0]``. Returns
        ``(B, Tq, d_model)``, and weights ``(B, H, Tq, Tk)`` or None.
        """
        key = query if key is None else key
        value = key if value is None else value
        flags = {"is_causal": is_causal, "need_weights": need_weights}
        mask, bias, positions = check_layer_call(
            self, query, key, value, mask, bias, positions, cache, **flags
        )
        queries = split_heads(self.query_proj(query), self.num_heads)
        keys = split_heads(self.key_proj(key), self.num_kv_heads)
        values = split_heads(self.value_proj(value), self.num_kv_heads)
        if self.rotary is not None and positions is not None:
            first = positions.shape[-1] - query.shape[1]
            queries = self.rotary(queries, positions[..., first:])
            first = positions.shape[-1] - key.shape[1]
            keys = self.rotary(keys, positions[..., first:])
        if cache is not None:
            if mask is not None:
                keys, values = hide_unseen(keys, values, mask)
            keys, values = cache.update(keys, values)
        context, weights = self.attention(
            queries, keys, values, mask=mask, bias=bias, is_causal=is_causal,
            scale=self.scale, dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )  # fmt: skip
        return self.output_proj(merge_heads(context)), weights

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Copy a layer of PyTorch: same outputs, weights and gradients."""
        return interop.attention_from_torch(cls, module)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """Copy into a layer of PyTorch, whose masks mean the opposite."""
        return interop.attention_to_torch(self, batch_first)
