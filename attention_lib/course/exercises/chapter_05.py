"""Answers to the exercises of the chapter on masking."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)
from attention_lib.leaks import future_leak

# --- 05-zero-fill and 05-corner: by head and by pencil -----------------------

_PAD = 1 / (2 * math.exp(-3) + 1)

register(
    Exercise(
        name="05-zero-fill",
        solution=_PAD,
        tolerance=2e-3,
        mistakes=[
            Mistake(
                0.0,
                "Only a score of minus infinity gives the weight 0. The "
                "exponential of 0 is 1.",
            ),
            Mistake(
                math.exp(2) / (math.exp(2) + 2 * math.exp(-3)),
                "That is the weight without any mask: the pad's score is 0 "
                "now, not 2.",
            ),
            Mistake(
                1 / 3,
                "The weights are equal only if the scores are. The other two "
                "are at -3.",
            ),
            Mistake(
                1.0,
                "Nearly, but the other two keys keep a little. Sum the three "
                "exponentials.",
            ),
            Mistake(
                1 - _PAD,
                "That is what the two words share. The question asks for the "
                "pad.",
            ),
        ],
        checked="the weight of the pad, to three digits",
    )
)

register(
    Exercise(
        name="05-corner",
        solution=18,
        tolerance=1e-6,
        mistakes=[
            Mistake(
                6,
                "That is the triangle among the new words, 1 + 2 + 3: the "
                "mask at the upper left. Which keys of the cache may they "
                "see?",
            ),
            Mistake(
                21,
                "That is every pair. The first new word must not see the two "
                "words after it.",
            ),
            Mistake(
                12,
                "You count the cached keys only, three times four. The new "
                "words see themselves and each other, too.",
            ),
            Mistake(
                15,
                "Each word sees itself: the diagonal stays. You have 4 + 5 + "
                "6.",
            ),
            Mistake(
                28,
                "That is the triangle of all seven words. Only the three new "
                "ones ask.",
            ),
        ],
        checked="the pairs of a causal mask at the lower right",
    )
)

# --- 05-window ---------------------------------------------------------------


def _window(query_length: int, key_length: int, window: int) -> Tensor:
    position = torch.arange(query_length)[:, None] + key_length - query_length
    distance = position - torch.arange(key_length)
    return (distance >= 0) & (distance < window)


def _window_at(
    first: int, last: Callable[[int], int], *, lower_right: bool = True
) -> Callable[[int, int, int], Tensor]:
    """Return a window mask that keeps distances from first up to last."""

    def mask(query_length: int, key_length: int, window: int) -> Tensor:
        offset = key_length - query_length if lower_right else 0
        position = torch.arange(query_length)[:, None] + offset
        distance = position - torch.arange(key_length)
        return (distance >= first) & (distance < last(window))

    return mask


register(
    Exercise(
        name="05-window",
        solution=_window,
        cases=[
            Case(3, 3, 1, note="a window of one: each query sees itself"),
            Case(3, 3, 2),
            Case(4, 4, 3),
            Case(1, 4, 2, note="one new query after three cached keys"),
            Case(2, 5, 3, note="two new queries after three cached keys"),
            Case(3, 3, 9, note="a window wider than the sequence"),
            Case(2, 0, 1, note="no keys"),
        ],
        mistakes=[
            Mistake(
                _window_at(0, lambda w: w, lower_right=False),
                "Your first query stands at the first key. The last query "
                "has to stand at the last key: move the queries by "
                "key_length - query_length.",
            ),
            Mistake(
                _window_at(0, lambda w: w + 1),
                "Your window is one too wide: the query's own key counts.",
            ),
            Mistake(
                _window_at(1, lambda w: w + 1),
                "A query sees itself: distance 0 belongs to the window.",
            ),
            Mistake(
                lambda q, k, w: _window_at(1 - w, lambda w: w)(q, k, w),
                "Your window looks ahead as well. Which sign has the "
                "distance to a key in the future?",
            ),
            Mistake(
                lambda q, k, w: ~_window(q, k, w),
                "This is upside down: True means may be attended.",
            ),
            Mistake(
                lambda q, k, w: _window_at(0, lambda w: k + 1)(q, k, w),
                "This is the whole causal mask. Keys that are too far back "
                "are hidden as well.",
            ),
        ],
        checked="windows of several sizes, with cached keys, without keys",
    )
)

# --- 05-combine --------------------------------------------------------------


def _combine(key_padding_mask: Tensor, attn_mask: Tensor) -> Tensor:
    return ~(key_padding_mask[:, None, :] | attn_mask)


def _booleans(*rows: str) -> Tensor:
    """Write a mask with x for True."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


register(
    Exercise(
        name="05-combine",
        solution=_combine,
        cases=[
            Case(
                _booleans(".x", ".."),
                _booleans(".x", ".."),
                note="two samples, two queries, two keys",
            ),
            Case(
                _booleans("..x"),
                _booleans(".x.", "..."),
                note="one pad, one blocked pair",
            ),
            Case(_booleans("..x", "...", ".xx"), _booleans(".xx", "..x")),
            Case(
                _booleans("..x", "...", "xx."),
                _booleans(".xx", "..x", "..."),
                note="as many queries as samples",
            ),
        ],
        mistakes=[
            Mistake(
                lambda pads, pairs: ~(pads[:, None] & pairs),
                "You block a pair only if both masks block it. With True = "
                "blocked, one of them is enough.",
            ),
            Mistake(
                lambda pads, pairs: pads[:, None] | pairs,
                "These are the blocked pairs. In our convention True means "
                "may be attended.",
            ),
            Mistake(
                lambda pads, pairs: pads[:, None] & pairs,
                "True is blocked in both inputs and allowed in the result: "
                "invert first, then combine.",
            ),
            Mistake(
                lambda pads, pairs: ~(pads[:, :, None] | pairs),
                "Your padding lies on the query axis. It blocks keys, the "
                "last axis.",
            ),
            Mistake(
                lambda pads, pairs: (~pads[:, None]).expand(
                    -1, len(pairs), -1
                ),
                "You use the padding only. What about attn_mask?",
            ),
            Mistake(
                lambda pads, pairs: (~pairs).expand(len(pads), -1, -1),
                "You use attn_mask only. What about the padding?",
            ),
        ],
        checked="padding, causal masks and both, for several batch sizes",
    )
)

# --- 05-packing --------------------------------------------------------------


def _packing(
    document: Tensor,
    *,
    same: bool = True,
    causal: bool = True,
    pads: bool = True,
    own: bool = True,
) -> Tensor:
    length = document.shape[1]
    mask = torch.ones(len(document), length, length, dtype=torch.bool)
    if same:
        mask = document[:, :, None] == document[:, None, :]
    if causal:
        mask = mask.tril(0 if own else -1)
    if pads:
        mask = mask & (document != -1)[:, None, :]
    return mask


def _packed(**left_out: bool) -> Callable[[Tensor], Tensor]:
    return lambda document: _packing(document, **left_out)


register(
    Exercise(
        name="05-packing",
        solution=_packed(),
        cases=[
            Case(torch.tensor([[0, 0]]), note="a single document"),
            Case(torch.tensor([[0, 1]]), note="two documents of one word"),
            Case(torch.tensor([[0, -1]]), note="a word and a pad"),
            Case(torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, -1, -1]])),
            Case(
                torch.tensor([[3, 3, 7, 7], [-1, -1, 2, 2], [0, 1, 2, 3]]),
                note="other numbers, pads in front",
            ),
        ],
        mistakes=[
            Mistake(
                _packed(causal=False),
                "Words see the later words of their document.",
            ),
            Mistake(
                _packed(own=False),
                "A word may see itself: the diagonal stays.",
            ),
            Mistake(
                _packed(same=False),
                "A document sees the documents before it.",
            ),
            Mistake(
                _packed(pads=False),
                "Pads carry -1 like each other, so they pass for a document "
                "of their own. Nobody sees a pad, pads included.",
            ),
            Mistake(
                lambda document: _packing(document).mT,
                "Rows are queries and columns are keys; yours are swapped.",
            ),
            Mistake(
                lambda document: ~_packing(document),
                "This is upside down: True means may be attended.",
            ),
        ],
        checked="documents of several lengths, pads in front and behind",
    )
)

# --- 05-smuggle --------------------------------------------------------------


def _reveals_the_future(answer: Any) -> bool:
    """Look for inputs whose future changes an earlier output."""
    generator = torch.Generator().manual_seed(1)
    for exponent in range(-6, 31):
        x = torch.randn(2, 5, 3, generator=generator)
        for sign in (1.0, -1.0):
            changed = x.clone()
            changed[:, -1] = sign * 10.0**exponent
            before, after = answer(x), answer(changed)
            if not torch.equal(before[:, :-1], after[:, :-1]):
                return True
    constants = [torch.full((2, 5, 3), float(n)) for n in range(-3, 4)]
    for x in constants:
        for other in constants:
            changed = x.clone()
            changed[:, -1] = other[:, -1]
            if not torch.equal(answer(x)[:, :-1], answer(changed)[:, :-1]):
                return True
    return False


def _judge_smuggler(answer: Any) -> str | None:
    if not callable(answer):
        return "This exercise asks for a function of one tensor."
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    output = answer(x)
    if output is None or output is Ellipsis:
        return "Your function returns nothing yet."
    if not isinstance(output, Tensor) or output.shape != x.shape:
        return "Your function has to return a tensor of the shape of x."
    report = future_leak(answer, x)
    if report:
        return (
            f"The detector caught it ({report}). Let the future show only "
            "for inputs that the detector does not try."
        )
    if not _reveals_the_future(answer):
        return (
            "The detector finds nothing, and neither does a search with "
            "very large, very small and special numbers. Does an early "
            "output really depend on a later input?"
        )
    return None


register(
    Exercise(
        name="05-smuggle",
        judge=_judge_smuggler,
        checked="clean for future_leak, and yet the future shows",
    )
)
