"""What the models call by name: caches of all blocks, modes, gates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib._checks import (
    check_inputs,
    check_layer_call,
    check_number,
    check_sizes,
    check_tensor,
    check_type,
    fit_mask,
    truth,
)
from attention_lib.cache import KVCache
from attention_lib.masks import padding_mask


class ModelCache:
    """One cache for each block of a model, read, cut and sorted as one.

    ``LanguageModel.new_cache`` makes it. ``caches`` are any objects with
    ``length``, ``update``, ``crop`` and ``reorder``, all different. Raises
    ValueError where they hold different numbers of positions.

    >>> ModelCache([KVCache(), KVCache()]).length
    0
    """

    def __init__(self, caches: Iterable[Any]) -> None:
        self.caches = list(caches)
        if len({id(cache) for cache in self.caches}) < len(self.caches):
            raise ValueError("caches must differ: each block needs its own")

    @property
    def length(self) -> int:
        """Number of positions stored."""
        lengths = [cache.length for cache in self.caches]
        if len(set(lengths)) > 1:
            raise ValueError(
                "the caches of the blocks must hold equally many positions, "
                f"got {lengths}"
            )
        return int(lengths[0])

    def crop(self, length: int) -> None:
        """Keep the first ``length`` positions."""
        for cache in self.caches:
            cache.crop(length)

    def reorder(self, rows: Tensor) -> None:
        """Put the given rows of the batch in the place of all."""
        for cache in self.caches:
            cache.reorder(rows)


def new_cache(num_layers: int) -> ModelCache:
    """Make an empty cache for each block."""
    return ModelCache(KVCache() for _ in range(num_layers))


class all_or_nothing:
    """Hand out a cache for each block; forget what an unfinished call stored.

    ``with all_or_nothing(cache, 2) as caches`` gives a list of two, of None
    where there is no cache.
    """

    def __init__(self, cache: ModelCache | None, num_layers: int) -> None:
        self.caches = [None] * num_layers if cache is None else cache.caches
        self.length = 0 if cache is None else cache.length

    def __enter__(self) -> list[Any]:
        return self.caches

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for cache in self.caches:
            if kind and cache is not None and cache.length > self.length:
                cache.crop(self.length)


class GrowingCache:
    """Keys and values of one attention, replaced and never written to.

    So the states of a decoder that share them stay as they are.
    """

    def __init__(self, stored: tuple[Tensor, ...]) -> None:
        self.stored = stored

    @property
    def length(self) -> int:
        """Number of positions stored."""
        return self.stored[0].shape[-2] if self.stored else 0

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Return all keys and all values, the new ones last."""
        if self.stored:
            pairs = zip(self.stored, new, strict=True)
            new = tuple(torch.cat(pair, -2) for pair in pairs)
        self.stored = new
        return new


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients; put the mode of each part back."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def make_positions(
    kind: Any, sizes: tuple[int, int], max_length: int | None, **rotary: Any
) -> tuple[nn.Module | None, nn.Module | None]:
    """Make what is added to word vectors, and what turns queries and keys.

    ``sizes`` are those of a word vector and of a head.
    """
    from attention_lib import positions

    if kind == "rotary":
        return None, positions.RotaryPositions(sizes[1], **rotary)
    if kind == "sinusoidal":
        return positions.SinusoidalPositions(sizes[0]), None
    if kind == "learned":
        if max_length is None:
            raise ValueError("learned positions need a max_length, got None")
        return positions.LearnedPositions(max_length, sizes[0]), None
    check_choice("positions", kind, None, "rotary", "sinusoidal", "learned")
    return None, None


def check_choice(name: str, value: Any, *choices: Any) -> None:
    """Refuse a value that is not one of a few."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def check_frequencies(name: str, width: int, base: float) -> None:
    """Refuse widths and bases of which no frequencies can be made."""
    check_sizes(**{name: width})
    check_number("base", base, low=1e-9)
    if width % 2:
        raise ValueError(
            f"{name} must be even, one sine and one cosine for each "
            f"frequency, got {width}"
        )


def check_places(
    positions: Tensor | None, features: Tensor, rows: int | None = None
) -> Tensor:
    """Refuse positions that are not one for each feature vector.

    Returns them, 0 to T - 1 if omitted. ``rows`` is the length of a table.
    """
    if positions is None:
        positions = torch.arange(features.shape[-2], device=features.device)
    if positions.shape[-1] != features.shape[-2]:
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} do not fit features "
            f"of shape {tuple(features.shape)}"
        )
    if rows and truth(((positions < 0) | (positions >= rows)).any()):
        raise ValueError(
            f"positions must lie below max_length={rows}, the length of the "
            f"learned table, got {int(positions.max())}"
        )
    return positions


def check_memory(
    block: Any, x: Tensor, memory: Tensor, mask: Any, cache: Any
) -> None:
    """Refuse a memory before the cache of the words is changed."""
    other = block.cross_attention
    check_inputs(x, memory, memory)
    check_layer_call(other, x, memory, memory, None, None, None, cache)
    if mask is not None:
        keys = memory.shape[1] + (0 if cache is None else cache.length)
        scores = (len(x), other.num_heads, x.shape[1], keys)
        fit_mask(mask, scores, x.device, "memory_mask")


def check_model_call(model: Any, tokens: Any, cache: Any) -> int:
    """Refuse what no model can read; return how much is cached."""
    check_tensor("tokens", tokens, "whole", "(B, T)")
    if cache is None:
        return 0
    check_type("cache", cache, ModelCache, "made by new_cache()")
    if len(cache.caches) != len(model.blocks):
        raise ValueError(
            f"cache holds {len(cache.caches)} caches for {len(model.blocks)} "
            "blocks, each of which needs its own"
        )
    return int(cache.length)


def check_prompts(
    model: Any, tokens: Any, lengths: Any, max_new_tokens: int
) -> Tensor | None:
    """Refuse what cannot be continued; return the mask of the padding."""
    check_tensor("tokens", tokens, "whole", "(B, T)")
    check_sizes(0, max_new_tokens=max_new_tokens)
    rows, width = tokens.shape
    mask, real = None, [width] * rows
    if lengths is not None:
        mask = padding_mask(lengths, width, side="left").to(tokens.device)
        real = mask.sum(-1).flatten().tolist()
    if width == 0 or len(real) != rows or 0 in real:
        raise ValueError(
            "lengths must be one for each prompt, at least 1, got "
            f"{real} for tokens {tuple(tokens.shape)}"
        )
    table = getattr(getattr(model, "positions", None), "table", None)
    most = math.inf if table is None else table.num_embeddings
    if max(real, default=0) + max_new_tokens > most:
        raise ValueError(
            f"{max(real)} tokens and max_new_tokens={max_new_tokens} are "
            f"beyond max_length={most}"
        )
    return mask


def check_sampling(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Refuse what describes no distribution."""
    check_number("temperature", temperature, low=1e-30)
    if top_k is not None:
        check_sizes(top_k=top_k)
    if top_p is not None:
        check_number("top_p", top_p, low=1e-9, high=1.0)
