"""What `make bench` measures, and the bars it should meet."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import NamedTuple

import torch
from measure import Call
from torch import Tensor, nn
from torch.nn import functional as F

from attention_lib import (
    AdditiveScore,
    KVCache,
    MultiHeadAttention,
    blockwise_attention,
    causal_mask,
    masked_softmax,
    padding_mask,
    scaled_dot_product_attention,
    to_key_padding_mask,
)


class Case(NamedTuple):
    """Two calls that compute the same, and the ratios they should keep."""

    group: str
    name: str
    ours: Call
    theirs: Call
    time_bar: float | None = None
    memory_bar: float | None = None


# Sizes. The tests make them small.
BATCH, LENGTH, WIDTH, HEADS = 4, 512, 512, 8
KERNEL_LENGTHS = (256, 512, 1024)
ADDITIVE_SIZE = 128
LONG = 16_384
TOKENS = 512
CACHED = 8192

LAYER = "The layer"
SMALL = "A small layer"
KERNEL = "The fused path"
EXPLICIT = "The path with weights"
SOFTMAX = "The masked softmax"
ADDITIVE = "The additive score"
BLOCKWISE = "Block by block"
CACHE = "With a cache"
IMPORT = "The import"

#: What each group compares, and on what.
SETTINGS = {
    LAYER: "`MultiHeadAttention` against `torch.nn.MultiheadAttention`: four "
    "sequences of 512 positions, `d_model` 512, eight heads, in training "
    "mode unless said otherwise.",
    SMALL: "The same with two sequences of 8 positions and `d_model` 64: "
    "mostly the fixed cost of a call.",
    KERNEL: "`scaled_dot_product_attention` without weights against PyTorch's "
    "kernel of the same name, called with the same mask: four sequences, "
    "eight heads of width 64.",
    EXPLICIT: "`scaled_dot_product_attention` with weights against the "
    "textbook form, which computes the scores, fills −1e9, takes the softmax "
    "and multiplies: four sequences of 512 positions, eight heads of width "
    "64.",
    SOFTMAX: "`masked_softmax` against a fill of −1e9 and `torch.softmax`, or "
    "the latter alone without a mask: scores of four sequences of 512 "
    "positions and eight heads.",
    ADDITIVE: "`AdditiveScore` against the textbook form, which keeps the "
    "full tensor of shape (4, 128, 128, 128): four sequences of 128 "
    "positions, all widths 128.",
    BLOCKWISE: "`blockwise_attention` against the fused kernel and against "
    "the plain form, which stores all scores: one head of width 64, 16,384 "
    "positions, no gradients.",
    CACHE: "One layer of width 256 with eight heads takes 512 tokens one "
    "after the other, with a `KVCache`, against the same layer that "
    "runs on all tokens so far at each step. One token is too little work "
    "to be shared by threads; all tokens are not. Then one step of a layer of "
    "width 512 with eight query heads beside 8,192 cached positions: two "
    "heads of keys against eight.",
    IMPORT: "`import attention_lib` in a process that has imported PyTorch, "
    "against a tenth of a second.",
}


def textbook_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores, a finite fill, the softmax, the product."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def textbook_additive(
    score: AdditiveScore, query: Tensor, key: Tensor
) -> Tensor:
    """Bahdanau's score with the full tensor of hidden activations."""
    query, key = score.query_proj(query), score.key_proj(key)
    return torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ (
        score.vector
    )


def backward(call: Callable[[], Tensor]) -> Call:
    """Add a backward pass from the sum of the result."""
    return lambda: call().sum().backward()


def layer_cases() -> Iterator[Case]:
    """Multi-head attention, training and inference."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    padding = padding_mask(lengths_of(LENGTH))
    blocked = to_key_padding_mask(padding)

    def run_ours(mask: Tensor | None, need_weights: bool) -> Tensor:
        return ours(x, mask=mask, need_weights=need_weights)[0]

    def run_theirs(mask: Tensor | None, need_weights: bool) -> Tensor:
        return theirs(
            x,
            x,
            x,
            key_padding_mask=mask,
            need_weights=need_weights,
            average_attn_weights=False,
        )[0]

    for need_weights in (False, True):
        for padded in (False, True):
            for back in (False, True):
                masks = (padding, blocked) if padded else (None, None)
                calls = [
                    lambda run=run, mask=mask, need=need_weights: run(
                        mask, need
                    )
                    for run, mask in zip(
                        (run_ours, run_theirs), masks, strict=True
                    )
                ]
                yield Case(
                    LAYER,
                    ("forward and backward" if back else "forward")
                    + (", padded" if padded else "")
                    + (", with weights" if need_weights else ""),
                    *(backward(call) if back else call for call in calls),
                    time_bar=1.05 if need_weights else 1.0,
                )

    def infer(
        module: nn.Module, call: Callable[[None, bool], Tensor], need: bool
    ) -> Call:
        def run() -> Tensor:
            module.eval()
            with torch.inference_mode():
                result = call(None, need)
            module.train()
            return result

        return run

    for need_weights in (False, True):
        yield Case(
            LAYER,
            "inference" + (", with weights" if need_weights else ""),
            infer(ours, run_ours, need_weights),
            infer(theirs, run_theirs, need_weights),
            time_bar=1.05 if need_weights else 1.0,
        )


def small_cases() -> Iterator[Case]:
    """The fixed cost of a call."""
    theirs = nn.MultiheadAttention(64, HEADS, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(2, 8, 64)
    yield Case(
        SMALL,
        "forward",
        lambda: ours(x)[0],
        lambda: theirs(x, x, x, need_weights=False)[0],
        time_bar=1.1,
    )
    ours, theirs = (copy.deepcopy(each).eval() for each in (ours, theirs))
    yield Case(
        SMALL,
        "inference",
        torch.inference_mode()(lambda: ours(x)[0]),
        torch.inference_mode()(lambda: theirs(x, x, x, need_weights=False)[0]),
        time_bar=1.6,
    )


def lengths_of(longest: int) -> list[int]:
    """Return the lengths of the sequences of a padded batch."""
    return [longest * (8 - 2 * sample) // 8 for sample in range(BATCH)]


def masks_of(length: int) -> dict[str, Tensor | None]:
    """The three usual masks for scores of four sequences."""
    return {
        "no mask": None,
        "padded": padding_mask(lengths_of(length))[:, None],
        "causal mask": causal_mask(length),
    }


def heads(length: int, *, requires_grad: bool = False) -> list[Tensor]:
    """Draw query, key and value, split into heads."""
    shape = (BATCH, HEADS, length, WIDTH // HEADS)
    return [torch.randn(shape, requires_grad=requires_grad) for _ in range(3)]


def kernel_cases() -> Iterator[Case]:
    """The fused path, where our own share is a fixed cost."""
    for length in KERNEL_LENGTHS:
        inputs = heads(length)
        options: dict[str, tuple[dict, dict]] = {
            name: ({"mask": mask}, {"attn_mask": mask})
            for name, mask in masks_of(length).items()
        }
        options["`is_causal`"] = ({"is_causal": True}, {"is_causal": True})
        for name, (own, other) in options.items():
            yield Case(
                KERNEL,
                f"{length} positions, {name}",
                lambda inputs=inputs, own=own: scaled_dot_product_attention(
                    *inputs, **own
                ),
                lambda inputs=inputs, other=other: (
                    F.scaled_dot_product_attention(*inputs, **other)
                ),
                time_bar=1.05,
            )
    inputs = heads(LENGTH, requires_grad=True)
    yield Case(
        KERNEL,
        f"{LENGTH} positions, no mask, forward and backward",
        backward(lambda: scaled_dot_product_attention(*inputs)[0]),
        backward(lambda: F.scaled_dot_product_attention(*inputs)),
        time_bar=1.05,
    )


def explicit_cases() -> Iterator[Case]:
    """The path that returns the weights."""
    for back in (False, True):
        inputs = heads(LENGTH, requires_grad=back)
        for name, mask in masks_of(LENGTH).items():
            calls = (
                lambda inputs=inputs, mask=mask: scaled_dot_product_attention(
                    *inputs, mask=mask, need_weights=True
                )[0],
                lambda inputs=inputs, mask=mask: textbook_attention(
                    *inputs, mask
                )[0],
            )
            yield Case(
                EXPLICIT,
                f"{name}, " + ("forward and backward" if back else "forward"),
                *(backward(call) if back else call for call in calls),
                time_bar=1.0,
            )


def softmax_cases() -> Iterator[Case]:
    """The softmax alone."""
    scores = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
    for name, mask in masks_of(LENGTH).items():
        yield Case(
            SOFTMAX,
            name,
            lambda mask=mask: masked_softmax(scores, mask),
            lambda mask=mask: torch.softmax(
                scores if mask is None else scores.masked_fill(~mask, -1e9),
                dim=-1,
            ),
            time_bar=None if mask is None else 1.0,
        )


def additive_cases() -> Iterator[Case]:
    """Bahdanau's score in blocks."""
    size = ADDITIVE_SIZE
    score = AdditiveScore(size, size, size)
    query, key = torch.randn(2, BATCH, size, size).unbind()
    for back in (False, True):
        calls = (
            lambda: score(query, key),
            lambda: textbook_additive(score, query, key),
        )
        yield Case(
            ADDITIVE,
            "forward and backward" if back else "forward",
            *(backward(call) if back else call for call in calls),
            time_bar=1.0,
            memory_bar=1 / 8,
        )


def long_cases() -> Iterator[Case]:
    """Attention block by block, where the scores would fill the memory."""
    ways = growing(LONG)
    yield Case(
        BLOCKWISE,
        "the fused kernel",
        ways["block by block"],
        ways["fused kernel"],
        time_bar=1.5,
    )
    yield Case(
        BLOCKWISE,
        "the plain form",
        ways["block by block"],
        ways["plain"],
        memory_bar=1 / 50,
    )


def cache_cases() -> Iterator[Case]:
    """Self-attention, token by token."""
    layer = MultiHeadAttention(256, 8).eval()
    x = torch.randn(1, TOKENS, 256)

    @torch.inference_mode()
    def cached() -> Tensor:
        cache = KVCache()
        outputs = [
            layer(x[:, step : step + 1], is_causal=True, cache=cache)[0]
            for step in range(TOKENS)
        ]
        return torch.cat(outputs, dim=1)

    @torch.inference_mode()
    def starting_over() -> Tensor:
        outputs = [
            layer(x[:, : step + 1], is_causal=True)[0][:, -1:]
            for step in range(TOKENS)
        ]
        return torch.cat(outputs, dim=1)

    yield Case(CACHE, "all tokens", cached, starting_over, time_bar=1 / 10)


def grouped_cases() -> Iterator[Case]:
    """One more token beside a long cache, with few heads of keys and all."""
    few = MultiHeadAttention(WIDTH, HEADS, num_kv_heads=2).eval()
    every = MultiHeadAttention(WIDTH, HEADS).eval()
    shared = HEADS // 2
    for name, own in every.named_parameters():
        less = few.get_parameter(name).data.unflatten(0, (-1, few.d_head))
        groups = own.numel() // less.numel()
        own.data = less.repeat_interleave(groups, 0).flatten(0, 1)
    token = torch.randn(1, 1, WIDTH)
    stored = torch.randn(2, 1, 2, CACHED, few.d_head)

    def step(layer: MultiHeadAttention, heads: Tensor) -> Call:
        cache = KVCache()
        cache.update(*heads)

        @torch.inference_mode()
        def run() -> Tensor:
            output, _ = layer(token, cache=cache)
            cache.crop(CACHED)
            return output

        return run

    yield Case(
        CACHE,
        "one more token, two heads of keys",
        step(few, stored),
        step(every, stored.repeat_interleave(shared, 2)),
        time_bar=0.6,
    )


# A process with PyTorch splits for each line that it reads; the half imports.
SPLITTING = """
import os, sys, torch
for _ in sys.stdin:
    if os.fork() == 0:
        import attention_lib
        os._exit(0)
    print(os.wait()[1], flush=True)
"""


def import_cases() -> Iterator[Case]:
    """What an importer waits for, PyTorch apart."""
    with ExitStack() as stack:

        @cache
        def server() -> subprocess.Popen[str]:
            command = [sys.executable, "-c", SPLITTING]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            return stack.enter_context(
                subprocess.Popen(command, **pipes, text=True)
            )

        def importing() -> Tensor:
            print(file=server().stdin, flush=True)
            return torch.tensor([int(server().stdout.readline())])

        def waiting() -> Tensor:
            time.sleep(0.1)
            return torch.tensor([0])

        yield Case(IMPORT, "all of it", importing, waiting, time_bar=1.0)


def all_cases() -> Iterator[Case]:
    """Every comparison, in the order of the page."""
    yield from layer_cases()
    yield from small_cases()
    yield from kernel_cases()
    yield from explicit_cases()
    yield from softmax_cases()
    yield from additive_cases()
    yield from long_cases()
    yield from cache_cases()
    yield from grouped_cases()
    yield from import_cases()


def growing(length: int) -> dict[str, Call]:
    """Return the ways whose growth is drawn, on one head of width 64."""
    inputs = torch.randn(3, 1, 1, length, 64).unbind()
    return {
        "plain": lambda: scaled_dot_product_attention(
            *inputs, need_weights=True
        ),
        "fused kernel": lambda: scaled_dot_product_attention(*inputs),
        "block by block": lambda: blockwise_attention(*inputs),
    }
