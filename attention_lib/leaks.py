# Written by tools/export.py from these cells, to be edited there:
# 05_masking.ipynb
"""Find out what an attention module lets through that it should not.

Each detector changes something that must not matter (the future, the
padding, the other samples, the order of the keys), runs the module again
and compares. A module is any callable from one tensor ``(B, T, ...)`` to an
output ``(B, Tq, ...)``, or to a tuple or dict with one in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attention_lib._probe import examine, pieces, real_tokens, should_see, stay

__all__ = [
    "LeakReport",
    "batch_leak",
    "future_leak",
    "influence",
    "missing",
    "order_leak",
    "padding_leak",
    "step_leak",
]


@dataclass(frozen=True)
class LeakReport:
    """What a detector found; true if there is a leak.

    ``kind`` is what was asked, ``largest`` how far an output moved that
    should have stayed, ``tolerance`` how far rounding may move it, ``where``
    which output depends on what, and ``note`` what else is worth knowing.

    Example:
        >>> print(LeakReport("future", 1.7, 1e-5, "output 0 sees input 1"))
        future: LEAK of 1.7, output 0 sees input 1
        >>> assert not LeakReport("future", 0.0, 1e-5)

    Built in section 5.8 (sec-leak-detectors).
    """

    kind: str
    largest: float
    tolerance: float
    where: str = ""
    note: str = ""

    def __bool__(self) -> bool:
        return not self.largest <= self.tolerance  # NaN is a leak

    def __str__(self) -> str:
        words = f"LEAK of {self.largest:.3g}", "no leak"
        if self.kind == "missing":
            words = f"{self.largest:.0f} HIDDEN", "nothing is hidden"
        found = f"{words[0]}, {self.where}" if self else words[1]
        return f"{self.kind}: {found}{self.note and f' ({self.note})'}"


def influence(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    **settings: Any,
) -> Float[Tensor, "Tq T"]:
    """Measure how far each output moves when one input is replaced.

    ``inputs`` are features ``(B, T, ...)`` or token ids ``(B, T)``. Row
    ``i``, column ``j`` of the result ``(Tq, T)`` is the largest change of
    output ``i``, over all samples and features, when input ``j`` is another.
    Among the settings, ``seed`` chooses the others; what is left, such as
    ``mask=``, goes to ``model``. One that answers in two ways is refused.

    Example:
        >>> running_sum = lambda x: x.cumsum(1)
        >>> (influence(running_sum, torch.randn(1, 3, 4)) > 0).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)

    Built in section 5.8 (sec-leak-detectors).
    """
    with examine(model, inputs, **settings) as probe:
        columns = []
        for source in probe.positions:
            after = probe.replace(probe.positions == source)
            change, _ = probe.compare(after)
            columns.append(change.amax((0, 2)))
    return torch.stack(columns, dim=1)


def future_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    positions: Literal["same", "last"] = "same",
    offset: int = 0,
    **settings: Any,
) -> LeakReport:
    """Replace one input after the other: no earlier output may notice.

    Output ``i`` may see the inputs ``j <= i + offset``; with
    ``positions="last"`` the outputs belong to the last of the inputs. The
    first and the last sample must not see the others either. The settings
    are those of ``influence``, and ``tolerance``, how much change is
    rounding: by default 128 units in the last place (8 in types of 16 bits)
    at the size of the outputs. NaN that was there before is no leak.

    Example:
        >>> print(future_leak(lambda x: x.cumsum(1), torch.randn(2, 5, 3)))
        future: no leak
        >>> bool(future_leak(lambda x: x.flip(1), torch.randn(2, 5, 3)))
        True

    Built in section 5.8 (sec-leak-detectors).
    """
    last = positions == "last"
    with examine(model, inputs, 1, last, **settings) as probe:
        reach = probe.places("positions='last'", positions) + offset
        for source in probe.positions:
            after = probe.replace(probe.positions == source)
            probe.watch(after, reach < source, f"input {source}")
        for sample in (0, -1):
            still = probe.samples == probe.samples[sample]
            after = probe.replace(~still)
            probe.watch(after, still, "other samples; is it (B, T, ...)?")
    return LeakReport("future", *probe.found())


def padding_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    lengths: Sequence[int] | Shaped[Tensor, " B"] | None = None,
    *,
    keep: Bool[Tensor, "B T"] | None = None,
    side: Literal["right", "left"] = "right",
    rows: Literal["real", "all"] = "real",
    trim: bool = False,
    **settings: Any,
) -> LeakReport:
    """Replace the padding: no output of a real token may notice.

    Real are ``lengths`` tokens of each sample, with the padding on ``side``,
    or those where ``keep`` is true. ``rows="all"`` is for outputs that belong
    to other positions than the inputs (cross-attention, pooling): all have to
    stay. ``trim`` compares with each sample alone and without its padding,
    for models that find pads by their token id. Settings: see
    ``future_leak``.

    Example:
        >>> mean = lambda x: x.mean(1, keepdim=True)
        >>> inputs = torch.randn(2, 4, 3)
        >>> bool(padding_leak(mean, inputs, [2, 4], rows="all"))
        True

    Built in section 5.8 (sec-leak-detectors).
    """
    with examine(model, inputs, **settings) as probe:
        real = real_tokens(inputs.shape[:2], lengths, keep, side)
        stays = stay(probe, rows, real)
        if not trim:
            after = probe.replace(~real)
            probe.watch(after, stays, "the padding")
        for sample in range(len(inputs) if trim else 0):
            alone = probe.inputs[sample, real[sample]][None]
            after = probe.before.clone()
            after[sample, stays[sample]] = probe.answer(alone)[0]
            probe.watch(after, stays, "the padding", room=2)
    return LeakReport("padding", *probe.found())


def batch_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    **settings: Any,
) -> LeakReport:
    """Replace one sample after the other: no other sample may notice.

    Finds attention over the wrong axis (``batch_first``), statistics over
    the batch, and masks that the model makes of its inputs and repeats in
    the wrong order. A mask that comes from elsewhere does not change with
    them: ``padding_leak`` finds that one. Settings: see ``future_leak``.

    Example:
        >>> center = lambda x: x - x.mean(0)
        >>> bool(batch_leak(center, torch.randn(3, 2, 4)))
        True

    Built in section 5.8 (sec-leak-detectors).
    """
    with examine(model, inputs, 2, **settings) as probe:
        for sample in range(len(inputs)):
            own = probe.samples == sample
            probe.watch(probe.replace(own), ~own, f"sample {sample}")
    return LeakReport("batch", *probe.found())


def order_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    lengths: Sequence[int] | Shaped[Tensor, " B"] | None = None,
    moves: bool = False,
    **settings: Any,
) -> LeakReport:
    """Permute the keys: a weighted sum may not notice.

    ``model`` goes from the memory (keys and values) to the output; with
    ``moves`` the outputs move along with the inputs, as in self-attention,
    where the queries are permuted too. With ``lengths`` only so many
    positions of each sample are permuted. Settings: see ``future_leak``;
    since sums change their order, there is twice the room for rounding.

    Example:
        >>> print(order_leak(lambda x: x.sum(1), torch.randn(2, 5, 3)))
        order: no leak
        >>> bool(order_leak(lambda x: x[:, :1], torch.randn(2, 5, 3)))
        True

    Built in section 5.8 (sec-leak-detectors).
    """
    with examine(model, inputs, **settings) as probe:
        order = probe.shuffled(lengths)
        before = probe.before
        if moves:
            probe.places("moves=False")
            before = before[probe.samples, order]
        after = probe.answer(probe.inputs[probe.samples, order])
        every = probe.samples >= 0
        probe.watch(after, every, "the order of inputs", before, room=2)
    return LeakReport("order", *probe.found())


def missing(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    expected: Literal["causal", "all"] | Bool[Tensor, "Tq T"] = "causal",
    **settings: Any,
) -> LeakReport:
    """Replace one input after the other: who may see it has to notice.

    True if a mask hides too much; ``largest`` counts the hidden pairs.
    ``expected`` says what each output should see: ``"causal"``, ``"all"`` or
    a mask ``(Tq, T)``. Each input is replaced by up to three others, far and
    near. An output also sees its own input through its query, and beside a
    residual in any case: a hidden diagonal shows in rows with one key, and
    from outside the residual not at all. Settings: see ``influence``.

    Example:
        >>> print(missing(lambda x: x.cumsum(1), torch.randn(2, 3, 4)))
        missing: nothing is hidden
        >>> missing(lambda x: x, torch.randn(1, 2, 4)).where
        'output 1 does not see input 0'

    Built in section 5.8 (sec-leak-detectors).
    """
    with examine(model, inputs, **settings) as probe:
        hidden = should_see(probe, expected)
        for scale in (10.0, 1.0, 0.1):
            probe.draw(scale)
            for source in hidden.any(0).nonzero()[:, 0]:
                after = probe.replace(probe.positions == source)
                change, _ = probe.compare(after)
                hidden[:, source] &= change.amax((0, 2)) == 0
        pairs, note = hidden.nonzero().tolist(), "; ".join(probe.notes)
    where = "".join(f"output {i} does not see input {j}" for i, j in pairs[:1])
    return LeakReport("missing", float(len(pairs)), 0.0, where, note)


def step_leak(
    full: Callable[..., Any],
    steps: Callable[[], Callable[..., Any]],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    chunks: Sequence[int] = (3, 1, 2),
    **settings: Any,
) -> LeakReport:
    """Compute all at once and chunk by chunk: no output may notice.

    ``full(inputs)`` answers at once. ``steps()`` makes an empty cache and
    returns a function that is called with one chunk after the other and
    answers for that chunk alone. The last size of ``chunks`` repeats. Finds
    positions that are counted wrong, keys that are lost or turned twice, and
    masks in the wrong corner. Settings: see ``order_leak``.

    Example:
        >>> forgetful = lambda: lambda chunk: chunk.cumsum(1)
        >>> x = torch.randn(1, 8, 2)
        >>> bool(step_leak(lambda x: x.cumsum(1), forgetful, x))
        True

    Built in section 5.8 (sec-leak-detectors).
    """
    with examine(full, inputs, **settings) as probe:
        before, parts = probe.before, pieces(probe.inputs, chunks)
        for cause in (f"chunks of {chunks}", "an earlier cache"):
            step = steps()
            answers = [probe.answer(part, model=step) for part in parts]
            after = torch.cat(answers, dim=1)
            probe.watch(after, probe.samples >= 0, cause, before, room=2)
            before = after
    return LeakReport("step", *probe.found())
