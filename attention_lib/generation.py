# Written by tools/export.py from these cells, to be edited there:
# 07_transformer.ipynb
"""Write with a language model, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from attention_lib._models import check_prompts, check_sampling, evaluating
from attention_lib._numerics import widen

__all__ = [
    "generate",
    "next_token_probs",
]


def next_token_probs(
    logits: Float[Tensor, "*batch V"],
    temperature: float = 1.0,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "*batch V"]:
    """Turn logits into the probabilities from which a token is drawn.

    ``temperature`` divides the logits. Of the tokens the ``top_k`` likeliest
    stay, and of these the fewest that hold ``top_p`` of the probability.
    Raises ValueError for numbers out of range.

    Source: Fan et al. (2018); Holtzman et al. (2020), section 3.1.

    >>> logits = torch.tensor([0.5, 0.3, 0.2]).log()
    >>> next_token_probs(logits, top_p=0.7)
    tensor([0.6250, 0.3750, 0.0000])

    Built in section 7.11 (sec-writes).
    """
    check_sampling(temperature, top_k, top_p)
    ordered, order = widen(logits).sort(stable=True, descending=True)
    probs = (ordered / temperature).softmax(-1)
    if top_k is not None:
        rank = torch.arange(probs.shape[-1], device=probs.device)
        probs = probs.where(rank < top_k, 0.0)
    if top_p is not None:
        probs = probs / probs.sum(-1, keepdim=True)
        before = probs.cumsum(-1) - probs  # held by likelier tokens
        probs = probs.masked_fill(before >= top_p, 0.0)
    probs = probs / probs.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter(-1, order, probs)


def generate(
    model: Any,
    tokens: Int[Tensor, "B T"],
    max_new_tokens: int,
    *,
    lengths: Int[Tensor, " B"] | Sequence[int] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B all"]:
    """Continue each row of ``tokens`` as if it stood alone: ``(B, T + new)``.

    ``lengths`` counts the real tokens of each row; the padding stands on the
    left. ``temperature`` 0 takes the likeliest token, else one is drawn from
    ``next_token_probs``, which ``top_k`` and ``top_p`` cut. After ``eos`` a
    row is filled with it, and the last row to end ends all. One call of the
    model per step serves the whole batch. The model is evaluated and gets
    its mode back. Raises ValueError for an empty prompt, or beyond the
    model's ``max_length``.

    Built in section 7.11 (sec-writes).
    """
    mask = check_prompts(model, tokens, lengths, max_new_tokens)
    done = torch.zeros_like(tokens[:, :1], dtype=torch.bool)
    cache, unread = model.new_cache(), tokens
    with evaluating(model):
        for _ in range(max_new_tokens):
            logits = model(unread, mask=mask, cache=cache)[:, -1]
            if temperature == 0:
                unread = logits.argmax(-1, keepdim=True)
            else:
                probs = next_token_probs(
                    logits, temperature, top_k=top_k, top_p=top_p
                )
                unread = torch.multinomial(probs, 1, generator=generator)
            if eos is not None:
                unread = unread.masked_fill(done, eos)
                done = unread == eos
            tokens = torch.cat([tokens, unread.to(tokens.dtype)], 1)
            if mask is not None:
                mask = F.pad(mask, (0, 1), value=True)
            if eos is not None and bool(done.all()):
                break
    return tokens
