"""Checkers for the exercises of the chapter on the Transformer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 07-encoding: the sinusoidal encoding of position 1, four features -----


def _clock(exponents: list[float], order: str = "pairs") -> list[float]:
    """The two hands of position 1, with frequencies 10000 ** -exponent."""
    angles = [10000.0**-exponent for exponent in exponents]
    sines, cosines = map(math.sin, angles), map(math.cos, angles)
    if order == "halves":
        return [*sines, *cosines]
    pairs = list(zip(sines, cosines, strict=True))
    if order == "swapped":
        pairs = [(cosine, sine) for sine, cosine in pairs]
    return [number for pair in pairs for number in pair]


register(
    Exercise(
        name="07-encoding",
        solution=_clock([0.0, 0.5]),
        tolerance=2e-3,
        mistakes=[
            Mistake(
                _clock([0.0, 0.25]),
                "Your second pair turns with 10000^(-1/4). The exponent of "
                "pair i is 2i / d_model: the 2 is missing.",
            ),
            Mistake(
                _clock([0.5, 1.0]),
                "Pairs are counted from 0, so the first one turns by one "
                "radian for each position.",
            ),
            Mistake(
                _clock([0.0, 0.5], "halves"),
                "These are the right numbers in another order: sine and "
                "cosine of one pair stand side by side.",
            ),
            Mistake(
                _clock([0.0, 0.5], "swapped"),
                "Sine comes first (the even feature), cosine second.",
            ),
            Mistake(
                [0.0, 1.0, 0.0, 1.0],
                "This is the encoding of position 0.",
            ),
            Mistake(
                [
                    f(math.radians(angle))
                    for angle in (1.0, 0.01)
                    for f in (math.sin, math.cos)
                ],
                "Your angles are in degrees; the formula wants radians.",
            ),
        ],
        checked="four numbers, to three digits",
    )
)

# --- 07-shift: one rotation for all positions ------------------------------


def _shift(steps: int, frequency: float) -> Tensor:
    angle = steps * frequency
    sine, cosine = math.sin(angle), math.cos(angle)
    return torch.tensor([[cosine, -sine], [sine, cosine]])


def _shift_back(steps: int, frequency: float) -> Tensor:
    return _shift(-steps, frequency)


def _shift_by_one(steps: int, frequency: float) -> Tensor:
    return _shift(1, frequency)


def _shift_of_cosine_first(steps: int, frequency: float) -> Tensor:
    return _shift(steps, frequency) * torch.tensor([[1.0, 1.0], [-1.0, 1.0]])


register(
    Exercise(
        name="07-shift",
        solution=_shift,
        cases=[
            Case(0, 1.0, note="no shift: the identity"),
            Case(1, 1.0, note="one step of the fastest pair"),
            Case(3, 0.5, note="three steps"),
            Case(-2, 0.01, note="backwards"),
        ],
        mistakes=[
            Mistake(
                _shift_back,
                "Your matrix leads from position p + k back to p: the signs "
                "of the sines are exchanged. Encodings are rows and the "
                "matrix stands on their right.",
            ),
            Mistake(
                _shift_by_one,
                "Your matrix always shifts by one step.",
            ),
            Mistake(
                _shift_of_cosine_first,
                "Both sines have the same sign, so your matrix does not "
                "keep lengths. Look at the angle-sum formula of the cosine.",
            ),
        ],
        checked="no shift, one step, several steps and a step back",
    )
)

# --- 07-layer-norm ---------------------------------------------------------


def _norm(
    axes: Callable[[int], tuple[int, ...]] = lambda dim: (-1,),
    *,
    centred: bool = True,
    unbiased: bool = False,
    eps_under_root: bool = True,
    scaled: bool = True,
    shifted: bool = True,
) -> Callable[..., Tensor]:
    """Layer norm, or what becomes of it with one decision changed.

    ``axes`` says for a number of axes over which of them mean and variance
    are taken.
    """

    def norm(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5
    ) -> Tensor:
        over = axes(x.dim())
        mean = x.mean(over, keepdim=True)
        variance = x.var(over, keepdim=True, unbiased=unbiased)
        if not centred:
            mean, variance = 0.0 * mean, variance + mean**2
        if eps_under_root:
            deviation = torch.sqrt(variance + eps)
        else:
            deviation = torch.sqrt(variance) + eps
        result = (x - mean) / deviation
        result = result * weight if scaled else result
        return result + bias if shifted else result

    return norm


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


register(
    Exercise(
        name="07-layer-norm",
        solution=_norm(),
        cases=[
            Case(
                torch.tensor([[[1.0, 3.0, 8.0], [2.0, 2.0, 5.0]]]),
                torch.ones(3),
                torch.zeros(3),
                note="one sentence of two words",
            ),
            Case(
                torch.tensor([[[1.0, 3.0, 8.0]], [[0.0, 2.0, -2.0]]]),
                torch.tensor([2.0, 1.0, 0.5]),
                torch.tensor([0.0, -1.0, 1.0]),
                note="with scale and shift",
            ),
            Case(
                torch.tensor([[[0.001, 0.003, 0.002], [7.0, 7.0, 7.0]]]),
                torch.ones(3),
                torch.zeros(3),
                note="features that hardly vary",
            ),
            Case(
                _random(3, 4, 5),
                _random(5, seed=1),
                _random(5, seed=2),
                1e-2,
                note="another eps",
            ),
        ],
        mistakes=[
            Mistake(
                _norm(unbiased=True),
                "You divide by d - 1 in the variance, as torch.var does by "
                "default. Layer norm divides by d: unbiased=False.",
            ),
            Mistake(
                _norm(lambda dim: (-2, -1)),
                "You take one mean and variance for a whole sentence. Layer "
                "norm takes them for each position alone.",
            ),
            Mistake(
                _norm(lambda dim: tuple(range(dim - 1))),
                "You normalise each feature over batch and positions: that "
                "is batch norm. Layer norm runs over the last axis.",
            ),
            Mistake(
                _norm(centred=False),
                "You do not subtract the mean. That is RMS norm, a good "
                "layer too, but another one.",
            ),
            Mistake(
                _norm(scaled=False),
                "The result still has to be multiplied by weight.",
            ),
            Mistake(
                _norm(shifted=False),
                "The bias still has to be added.",
            ),
            Mistake(
                _norm(eps_under_root=False),
                "You add eps to the standard deviation. It belongs under "
                "the root, to the variance.",
            ),
        ],
        checked="one and several sentences, scale and shift, features that "
        "hardly vary, another eps",
    )
)

# --- 07-pre-norm: the order of events in a block ---------------------------

Sublayer = Callable[[Tensor], Tensor]


def _pre_norm(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, second_norm = parts
    x = x + attention(first_norm(x))
    return x + feed_forward(second_norm(x))


def _post_norm(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, second_norm = parts
    x = first_norm(x + attention(x))
    return second_norm(x + feed_forward(x))


def _norm_on_the_stream(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, second_norm = parts
    x = first_norm(x)
    x = second_norm(x + attention(x))
    return x + feed_forward(x)


def _no_residual(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, second_norm = parts
    return feed_forward(second_norm(attention(first_norm(x))))


def _parallel(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, second_norm = parts
    return x + attention(first_norm(x)) + feed_forward(second_norm(x))


def _one_norm(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, _ = parts
    return _pre_norm(x, attention, feed_forward, first_norm, first_norm)


def _second_residual_from_the_start(x: Tensor, *parts: Sublayer) -> Tensor:
    attention, feed_forward, first_norm, second_norm = parts
    change = attention(first_norm(x))
    return x + feed_forward(second_norm(x + change))


def _call_block(block: Callable[..., Any], x: Any) -> Any:
    """Give a block sublayers that are easy to tell apart."""
    x = torch.as_tensor(x, dtype=torch.float32)
    with torch.no_grad():
        return block(
            x,
            lambda x: x.mean(1, keepdim=True) + 0.5 * x,
            lambda x: torch.relu(x) - 0.25,
            nn.LayerNorm(x.shape[-1]),
            _Scaled(x.shape[-1]),
        )


class _Scaled(nn.Module):
    """A layer norm that differs from the first one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        nn.init.constant_(self.norm.weight, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed


register(
    Exercise(
        name="07-pre-norm",
        solution=_pre_norm,
        call=_call_block,
        cases=[
            Case(
                torch.tensor([[[1.0, 2.0, 6.0], [0.0, -1.0, 4.0]]]),
                note="one sentence of two words; attention(x) is "
                "x.mean(1) + x / 2, feed_forward(x) is relu(x) - 1/4",
            ),
            Case(_random(2, 4, 6), note="two sentences"),
        ],
        mistakes=[
            Mistake(
                _post_norm,
                "This is post-norm: you normalise the sum. Pre-norm "
                "normalises what the sublayer reads.",
            ),
            Mistake(
                _norm_on_the_stream,
                "You add the change to the normalised x, so the stream "
                "itself is normalised. Pre-norm leaves the stream alone and "
                "normalises a copy.",
            ),
            Mistake(
                _no_residual,
                "There is no residual connection: add x to what each "
                "sublayer returns.",
            ),
            Mistake(
                _parallel,
                "Both sublayers read the same x. The feed-forward layer "
                "reads what the attention has left.",
            ),
            Mistake(
                _one_norm,
                "You use first_norm twice; the second sublayer has a norm "
                "of its own.",
            ),
            Mistake(
                _second_residual_from_the_start,
                "The result of the attention is lost on the stream: the "
                "second sum has to start from x + change.",
            ),
        ],
        checked="the order of norms, sublayers and sums",
    )
)

# --- 07-halves: the other convention of rotary positions -------------------


def _rotation(
    *,
    pairs: bool = False,
    backwards: bool = False,
    reflected: bool = False,
    exponent: float = 2.0,
) -> Callable[..., Tensor]:
    """The other convention, or what becomes of it with one slip.

    Pair ``i`` turns with ``10000 ** (-exponent * i / width)``.
    """

    def rotate(features: Tensor, positions: Tensor) -> Tensor:
        width = features.shape[-1]
        steps = exponent * torch.arange(width // 2) / width
        angles = positions[:, None] * 10000.0**-steps
        sine, cosine = angles.sin(), angles.cos()
        sine = -sine if backwards else sine
        if pairs:
            first, second = features[..., 0::2], features[..., 1::2]
        else:
            first, second = features.chunk(2, dim=-1)
        turned = (
            first * cosine + (sine if reflected else -sine) * second,
            first * sine + second * cosine,
        )
        if pairs:
            return torch.stack(turned, dim=-1).flatten(-2)
        return torch.cat(turned, dim=-1)

    return rotate


register(
    Exercise(
        name="07-halves",
        solution=_rotation(),
        cases=[
            Case(
                torch.tensor([[1.0, 2.0, 0.0, 0.0]]),
                torch.tensor([1]),
                note="one word at position 1",
            ),
            Case(
                torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]]),
                torch.tensor([0, 3]),
                note="positions 0 and 3",
            ),
            Case(
                _random(2, 3, 5, 8),
                torch.arange(5),
                note="two samples, three heads, five positions",
            ),
        ],
        mistakes=[
            Mistake(
                _rotation(pairs=True),
                "You turn neighbours, features 2i and 2i + 1, as our "
                "RotaryPositions does unless told otherwise. Here feature i "
                "goes with feature i + width / 2.",
            ),
            Mistake(
                _rotation(backwards=True),
                "You turn the wrong way round: exchange the signs of the "
                "sines.",
            ),
            Mistake(
                _rotation(reflected=True),
                "One of the two sines needs a minus; yours does not keep "
                "lengths.",
            ),
            Mistake(
                _rotation(exponent=0.0),
                "All your pairs turn with the same frequency. Pair i turns "
                "with 10000 ** (-2i / width).",
            ),
            Mistake(
                _rotation(exponent=1.0),
                "Your frequencies are 10000 ** (-i / width). The exponent "
                "of pair i is 2i / width.",
            ),
        ],
        checked="one and several positions, batch and heads in front",
    )
)

# --- 07-parameters: how large is a block? ----------------------------------


def _parameters(
    *, projections: int = 4, norms: int = 2, biases: bool = True
) -> Callable[[int, int], int]:
    """Count a block's parameters, or forget some of them."""

    def count(d_model: int, d_ff: int) -> int:
        attention = projections * d_model * (d_model + biases)
        feed_forward = 2 * d_model * d_ff + biases * (d_ff + d_model)
        return attention + feed_forward + norms * 2 * d_model

    return count


register(
    Exercise(
        name="07-parameters",
        solution=_parameters(),
        cases=[
            Case(4, 6, note="a small block"),
            Case(10, 40, note="d_model=10, d_ff=40"),
            Case(512, 2048, note="the base model of the paper"),
        ],
        mistakes=[
            Mistake(
                _parameters(projections=3),
                "Attention has four projections: query, key, value and "
                "output.",
            ),
            Mistake(
                _parameters(norms=1),
                "There are two norms, one for each sublayer.",
            ),
            Mistake(
                _parameters(norms=0),
                "The two norms have a scale and a shift for each feature.",
            ),
            Mistake(
                _parameters(biases=False),
                "The six linear maps have biases.",
            ),
            Mistake(
                _parameters(norms=0, biases=False),
                "These are the matrices. Biases and norms count too.",
            ),
        ],
        checked="three sizes, the base model of the paper among them",
    )
)

# --- 07-twins: sentences that a bag of words confuses ----------------------


def _judge_twins(answer: Any) -> str | None:
    """Accept two sentences of the same words with different translations."""
    from attention_lib.course.corpus import ENGLISH, UNK, tokenize_english

    if (
        not isinstance(answer, tuple | list)
        or len(answer) != 2
        or not all(isinstance(text, str) for text in answer)
    ):
        return "Pass two sentences: ('the …', 'the …')."
    first, second = (tokenize_english(text) for text in answer)
    for words in (first, second):
        for word, number in zip(words, ENGLISH.encode(words), strict=True):
            if number == UNK:
                return f"The corpus has no word {word!r}."
        if len(words) < 5:
            return (
                "A sentence of the corpus has a subject, a verb and an "
                "object, such as 'the cat chases the dog'."
            )
    if first == second:
        return "The two sentences are the same."
    if sorted(first) != sorted(second):
        only = sorted(set(first) ^ set(second))
        return (
            "The two sentences do not have the same words"
            + (f": only one of them has {only[0]!r}." if only else ".")
            + " An encoder without positions can tell them apart."
        )
    return None


register(
    Exercise(
        name="07-twins",
        solution=("the dog chases the cat", "the cat chases the dog"),
        judge=_judge_twins,
        checked="known words, the same words, not the same order",
    )
)
