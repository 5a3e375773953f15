# Written by tools/export.py from these cells, to be edited there:
# 08_efficiency.ipynb
"""Keys and values kept while a model writes."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_lib._blockwise import check_kept
from attention_lib._checks import check_number, check_sizes

__all__ = [
    "KVCache",
]


class KVCache:
    """Keep the keys and values of one layer while a model writes.

    ``MultiHeadAttention`` calls ``update`` with what it has projected:
    ``num_kv_heads`` heads, however many query heads share them. ``length``
    is the number of positions kept. The room for them doubles when it runs
    out, so one more costs, on average, the copying of one. For use under
    ``torch.no_grad``: what is kept is overwritten.

    Source: Shazeer (2019), section 2.4.

    >>> cache = KVCache()
    >>> keys, values = cache.update(*torch.ones(2, 1, 2, 3, 4))
    >>> keys, values = cache.update(*torch.ones(2, 1, 2, 1, 4))
    >>> keys.shape, cache.length, cache.num_bytes
    (torch.Size([1, 2, 4, 4]), 4, 256)

    Built in section 8.5 (sec-kv-cache).
    """

    def __init__(self) -> None:
        self.length = 0
        self._stores: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values kept, spare room not counted."""
        return sum(x[..., : self.length, :].nbytes for x in self._stores)

    def update(
        self,
        key: Float[Tensor, "B H_kv new d_k"],
        value: Float[Tensor, "B H_kv new d_v"],
    ) -> tuple[Float[Tensor, "B H_kv Tk d_k"], Float[Tensor, "B H_kv Tk d_v"]]:
        """Keep new keys and values; return all, the new ones last.

        They are views: copy them if they have to outlive the next call.
        Raises TypeError or ValueError, and keeps what it has, if a gradient
        is asked for or the new do not belong to the old.
        """
        check_kept(key, value, self._stores)
        length = self.length + key.shape[-2]
        stores = self._stores or [key[..., :0, :], value[..., :0, :]]
        self._stores = [self._with_room(store, length) for store in stores]
        for store, new in zip(self._stores, (key, value), strict=True):
            store[..., self.length : length, :] = new
        self.length = length
        keys, values = (store[..., :length, :] for store in self._stores)
        return keys, values

    def _with_room(self, store: Tensor, length: int) -> Tensor:
        """Return the store, or one with twice the room if it is full."""
        if 0 < length <= store.shape[-2]:
            return store
        room = max(length, 2 * store.shape[-2])
        with torch.inference_mode(False):  # so that any mode may write to it
            larger = store.new_empty(*store.shape[:2], room, store.shape[3])
            larger[..., : self.length, :] = store[..., : self.length, :]
        return larger

    def crop(self, length: int) -> None:
        """Forget all positions but the first ``length``."""
        check_sizes(0, length=length)
        check_number("length", length, 0.0, float(self.length))
        self.length = length

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these samples of the batch, in this order, some repeated."""
        with torch.inference_mode(False):
            self._stores = [x.index_select(0, rows) for x in self._stores]
