# Written by tools/export.py from these cells, to be edited there:
# 08_efficiency.ipynb
"""Keys and values kept while a model writes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attention_lib._checks import check_tensor

__all__ = [
    "KVCache",
]


class KVCache:
    """Keep keys and values while a model writes, in memory that doubles.

    A :class:`~attention_lib.multihead.AttentionCache` for
    :class:`~attention_lib.multihead.MultiHeadAttention`. What is stored is
    what the layer projects: ``num_kv_heads`` heads, whatever the number of
    query heads. Room is made for twice as many positions whenever it runs
    out, so that storing one more costs, on average, the copying of one.
    For use under :class:`torch.no_grad`: stored numbers are overwritten.

    Attributes:
        length: Number of positions stored.

    References:
        Shazeer (2019), "Fast Transformer Decoding", section 2.4.

    Example:
        >>> from attention_lib.multihead import MultiHeadAttention
        >>> layer = MultiHeadAttention(8, 2).requires_grad_(False)
        >>> words, cache = torch.randn(1, 5, 8), KVCache()
        >>> first, _ = layer(words[:, :3], is_causal=True, cache=cache)
        >>> rest, _ = layer(words[:, 3:], is_causal=True, cache=cache)
        >>> at_once, _ = layer(words, is_causal=True)
        >>> torch.allclose(torch.cat([first, rest], 1), at_once, atol=1e-6)
        True
        >>> cache.length, cache.num_bytes
        (5, 320)

    Built in :ref:`section 8.5 <sec-kv-cache>`.
    """

    def __init__(self) -> None:
        self.length = 0
        self._stores: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values stored, unused room not counted."""
        return sum(
            store[..., : self.length, :].nbytes for store in self._stores
        )

    def update(
        self,
        key: Float[Tensor, "B kv_heads new d_head"],
        value: Float[Tensor, "B kv_heads new d_v"],
    ) -> tuple[
        Float[Tensor, "B kv_heads Tk d_head"],
        Float[Tensor, "B kv_heads Tk d_v"],
    ]:
        """Store new keys and values; return all, the new ones last.

        Args:
            key: ``(B, kv_heads, new, d_head)``.
            value: ``(B, kv_heads, new, d_v)``.

        Returns:
            Keys and values of all positions so far. They are views: copy
            them if they have to outlive the next call.

        Raises:
            ValueError: If a gradient is asked for, or if shape, type or
                device differ from what is stored.
        """
        check_tensor("key", key, "floating-point", "(B, kv_heads, new, d)")
        check_tensor("value", value, "floating-point", "(B, kv_heads, new, d)")
        arrivals = (key, value)
        for name, new in zip(("key", "value"), arrivals, strict=True):
            if torch.is_grad_enabled() and new.requires_grad:
                raise ValueError(
                    f"{name} requires a gradient, and a cache overwrites "
                    "what a gradient would need: decode under "
                    "torch.no_grad(), and train without a cache"
                )
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                f"key {tuple(key.shape)} and value {tuple(value.shape)} "
                "differ in batch, heads or length"
            )
        if not self._stores:  # stores of the right kind, without room yet
            self._stores = [new[..., :0, :].clone() for new in arrivals]
        length = self.length + key.shape[-2]
        for index, (store, new) in enumerate(
            zip(self._stores, arrivals, strict=True)
        ):
            fits = [*store.shape[:2], store.shape[3]]
            if (
                [*new.shape[:2], new.shape[3]] != fits
                or new.dtype != store.dtype
                or new.device != store.device
            ):
                raise ValueError(
                    f"{('key', 'value')[index]} has shape "
                    f"{tuple(new.shape)}, {new.dtype}, {new.device}; the "
                    f"cache holds (batch, heads, width) = {tuple(fits)}, "
                    f"{store.dtype}, {store.device}"
                )
        for index, new in enumerate(arrivals):
            store = self._stores[index]
            if length > store.shape[-2]:
                room = max(length, 2 * store.shape[-2])
                grown = store.new_empty(*store.shape[:2], room, new.shape[3])
                grown[..., : self.length, :] = store[..., : self.length, :]
                self._stores[index] = store = grown
            store[..., self.length : length, :] = new
        self.length = length
        keys, values = (store[..., :length, :] for store in self._stores)
        return keys, values
