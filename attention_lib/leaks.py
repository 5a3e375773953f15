# Written by tools/export.py from these cells, to be edited there:
# 05_masking.ipynb
"""Find out what an attention module lets through that it should not.

Each detector changes something that must not matter (the future, the
padding, the other samples, the order of the keys), runs the module again
and compares. A module is any callable from one tensor ``(B, T, ...)`` to an
output ``(B, Tq, ...)``, or to a tuple that starts with it; masks and further
inputs go into a closure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from attention_lib._checks import (
    check_callable,
    check_items,
    check_number,
    check_sizes,
    check_tensor,
)

__all__ = [
    "LeakReport",
    "batch_leak",
    "future_leak",
    "influence",
    "order_leak",
    "padding_leak",
]


@dataclass(frozen=True)
class LeakReport:
    """What a detector found; true if there is a leak.

    Attributes:
        kind: what was changed: ``"future"``, ``"padding"``, ``"batch"`` or
            ``"order"``.
        largest: the largest change of an output that should have stayed.
        tolerance: up to which size a change counts as rounding.
        where: which output changed most, and by what.

    Example:
        >>> report = LeakReport("future", 0.0, 1e-5, "")
        >>> print(report)
        future: no leak
        >>> assert not report

    Built in :ref:`section 5.8 <sec-leak-detectors>`.
    """

    kind: str
    largest: float
    tolerance: float
    where: str

    def __bool__(self) -> bool:
        # Written so that a change of NaN counts as a leak.
        return not self.largest <= self.tolerance

    def __str__(self) -> str:
        if not self:
            return f"{self.kind}: no leak"
        return f"{self.kind}: LEAK of {self.largest:.3g}, {self.where}"


def _run(model: Callable[..., Any], inputs: Tensor) -> Tensor:
    """Call a module and return its output alone."""
    output = model(inputs)
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(
            "model must return a tensor or a tuple that starts with one, "
            f"got {type(output).__name__}"
        )
    if output.dim() < 2 or len(output) != len(inputs):
        raise ValueError(
            f"model must return an output (B, Tq, ...) with B = "
            f"{len(inputs)}, got shape {tuple(output.shape)}"
        )
    return output


def _baseline(model: Callable[..., Any], inputs: Tensor) -> Tensor:
    """Run a module twice and insist on one answer."""
    first, second = _run(model, inputs), _run(model, inputs)
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ValueError(
            "model gives two different outputs for the same inputs; "
            "switch its dropout off with model.eval()"
        )
    return first


def _noise(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return inputs that differ everywhere: far away, or other tokens."""
    if inputs.is_floating_point():
        noise = torch.randn(inputs.shape, generator=generator)
        return inputs + 10 * noise.to(inputs.device, inputs.dtype)
    low, high = int(inputs.min()), int(inputs.max())
    if low == high:
        raise ValueError(
            f"inputs hold the single token id {low}; give different ones"
        )
    step = torch.randint(1, high - low + 1, inputs.shape, generator=generator)
    step = step.to(inputs.device)
    return low + (inputs - low + step) % (high - low + 1)


def _change(before: Tensor, after: Tensor) -> Tensor:
    """Return the size of the change of each ``(sample, position)``."""
    change = (after.double() - before.double()).abs()
    change = change.masked_fill(after == before, 0.0)  # infinity, too
    change = change.nan_to_num(torch.inf, torch.inf, torch.inf)
    return change.flatten(2).amax(2) if change.dim() > 2 else change


def _tolerance(output: Tensor, tolerance: float | None) -> float:
    """Return the given tolerance, or what rounding may amount to."""
    if tolerance is not None:
        check_number("tolerance", tolerance, low=0.0)
        return float(tolerance)
    if not output.is_floating_point():
        return 0.0  # token ids are equal or not
    finite = output.detach().nan_to_num(0.0, 0.0, 0.0)
    scale = 1.0 + float(finite.abs().amax())
    return 100 * torch.finfo(output.dtype).eps * scale


def _check_call(model: Any, inputs: Tensor, seed: int) -> None:
    """Refuse what no detector can examine."""
    check_callable("model", model)
    check_sizes(-sys.maxsize, seed=seed)
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"inputs must be a tensor, got {type(inputs).__name__}"
        )
    if inputs.dtype == torch.bool or inputs.is_complex():
        raise TypeError(
            "inputs must hold floating-point numbers or token ids, got "
            f"{inputs.dtype}"
        )
    if inputs.dim() < 2 or inputs.numel() == 0:
        raise ValueError(
            "inputs must have shape (B, T) or (B, T, ...) and not be empty, "
            f"got {tuple(inputs.shape)}"
        )


def _ends_of(
    lengths: Sequence[int] | Shaped[Tensor, " B"], inputs: Tensor
) -> list[int]:
    """Return one length for each sample, refusing those that do not fit."""
    if isinstance(lengths, Tensor):
        check_tensor("lengths", lengths, "whole", "(B,)")
        lengths = lengths.tolist()
    ends = check_items("lengths", lengths, int, "whole numbers")
    if len(ends) != len(inputs) or not all(
        0 <= end <= inputs.shape[1] for end in ends
    ):
        raise ValueError(
            f"lengths {ends} do not fit inputs of shape {tuple(inputs.shape)}"
        )
    return ends


def influence(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    method: Literal["perturb", "gradient"] = "perturb",
    seed: int = 0,
) -> Float[Tensor, "Tq T"]:
    """Measure how far each output depends on each input.

    ``"perturb"`` replaces one input position after the other and notes the
    largest change of every output position. It works with any callable and
    with token ids. ``"gradient"`` takes the norm of the derivative of each
    output, projected on a random direction, by each input; it sees
    dependencies of any size but needs floating-point inputs.

    Args:
        model: the callable to examine; it must not be random.
        inputs: features ``(B, T, ...)`` or token ids ``(B, T)``.
        method: how to measure.
        seed: seed of the changes or of the directions.

    Returns:
        ``(Tq, T)``: row ``i``, column ``j`` tells how output ``i`` depends
        on input ``j``, over all samples and features. Zero = not at all.

    Raises:
        TypeError: if ``inputs`` are no tensor, or the gradient by token ids
            is asked for.
        ValueError: if the model is random or has no gradient that was asked
            for, or the shapes do not fit.

    Example:
        >>> running_sum = lambda x: x.cumsum(1)
        >>> dependence = influence(running_sum, torch.randn(1, 3, 4))
        >>> (dependence > 0).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)

    Built in :ref:`section 5.8 <sec-leak-detectors>`.
    """
    _check_call(model, inputs, seed)
    generator = torch.Generator().manual_seed(seed)
    if method == "perturb":
        with torch.no_grad():
            before = _baseline(model, inputs)
            other = _noise(inputs, generator)
            columns = []
            for position in range(inputs.shape[1]):
                changed = inputs.clone()
                changed[:, position] = other[:, position]
                after = _run(model, changed)
                columns.append(_change(before, after).amax(0))
            return torch.stack(columns, dim=1).float()
    if method != "gradient":
        raise ValueError(
            f"method must be 'perturb' or 'gradient', got {method!r}"
        )
    if not inputs.is_floating_point():
        raise TypeError(
            "the gradient needs floating-point inputs, got "
            f"{inputs.dtype}; use method='perturb'"
        )
    with torch.enable_grad():
        leaf = inputs.detach().clone().requires_grad_()
        output = _run(model, leaf)
        if not output.requires_grad:
            raise ValueError(
                "the output of model has no gradient, as under "
                "torch.no_grad() or of token ids; use method='perturb'"
            )
        direction = torch.randn(output.shape, generator=generator)
        projected = output * direction.to(output.device, output.dtype)
        rows = []
        for position in range(output.shape[1]):
            (slope,) = torch.autograd.grad(
                projected[:, position].sum(), leaf, retain_graph=True
            )
            rows.append(slope.flatten(2).norm(dim=2).amax(0))
    return torch.stack(rows).float()


def future_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    offset: int = 0,
    method: Literal["perturb", "gradient"] = "perturb",
    tolerance: float | None = None,
    seed: int = 0,
) -> LeakReport:
    """Change the future: no earlier output may notice.

    Args:
        model: the callable to examine.
        inputs: features ``(B, T, ...)`` or token ids ``(B, T)``.
        offset: output ``i`` may depend on the inputs ``j <= i + offset``;
            -1 demands that it does not see its own input either.
        method: see :func:`influence`.
        tolerance: largest change that counts as rounding; by default a
            hundred units in the last place of the largest output.
        seed: seed of the changes.

    Returns:
        A report; true if the future leaks.

    Raises:
        TypeError: as :func:`influence`.
        ValueError: as :func:`influence`.

    Example:
        >>> print(future_leak(lambda x: x.cumsum(1), torch.randn(2, 5, 3)))
        future: no leak
        >>> bool(future_leak(lambda x: x.flip(1), torch.randn(2, 5, 3)))
        True

    Built in :ref:`section 5.8 <sec-leak-detectors>`.
    """
    check_sizes(-sys.maxsize, offset=offset)
    dependence = influence(model, inputs, method=method, seed=seed)
    with torch.no_grad():
        limit = _tolerance(_run(model, inputs), tolerance)
    ahead = dependence.triu(offset + 1)
    largest = float(ahead.amax())
    output, source = divmod(int(ahead.argmax()), ahead.shape[1])
    return LeakReport(
        "future",
        largest,
        limit,
        f"output {output} depends on input {source}",
    )


def padding_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    lengths: Sequence[int] | Shaped[Tensor, " B"],
    *,
    rows: Literal["real", "all"] = "real",
    trim: bool = False,
    tolerance: float | None = None,
    seed: int = 0,
) -> LeakReport:
    """Change the padding: no output of a real token may notice.

    Args:
        model: the callable to examine, its mask included.
        inputs: features ``(B, T, ...)`` or token ids ``(B, T)``, padded on
            the right.
        lengths: number of real tokens of each sequence.
        rows: which outputs have to stay: those of the real tokens
            (self-attention), or ``"all"`` if the outputs belong to other
            positions than the inputs (cross-attention, pooling).
        trim: compare with each sequence alone, cut to its length, instead
            of changing the pads. For models that find the padding by
            themselves, from the token ids.
        tolerance: largest change that counts as rounding; by default a
            hundred units in the last place of the largest output.
        seed: seed of the changes.

    Returns:
        A report; true if the padding leaks.

    Raises:
        TypeError: if ``inputs`` are no tensor.
        ValueError: if the model is random, or the shapes do not fit.

    Example:
        >>> mean = lambda x: x.mean(1, keepdim=True)
        >>> inputs = torch.randn(2, 4, 3)
        >>> print(bool(padding_leak(mean, inputs, [2, 4], rows="all")))
        True

    Built in :ref:`section 5.8 <sec-leak-detectors>`.
    """
    _check_call(model, inputs, seed)
    ends = _ends_of(lengths, inputs)
    if rows not in ("real", "all"):
        raise ValueError(f"rows must be 'real' or 'all', got {rows!r}")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        before = _baseline(model, inputs)
        if not trim:
            other = _noise(inputs, generator)
            changed = inputs.clone()
            for sample, end in enumerate(ends):
                changed[sample, end:] = other[sample, end:]
            after = _run(model, changed)
        largest, where = 0.0, ""
        for sample, end in enumerate(ends):
            mine = before[sample : sample + 1]
            if trim:
                alone = _run(model, inputs[sample : sample + 1, :end])
            else:
                alone = after[sample : sample + 1]
            if rows == "real":
                mine, alone = mine[:, :end], alone[:, :end]
            change = _change(mine, alone)
            if change.numel() and float(change.amax()) > largest:
                largest = float(change.amax())
                where = (
                    f"output {int(change.argmax())} of sample {sample} "
                    f"depends on what follows its {end} tokens"
                )
    return LeakReport("padding", largest, _tolerance(before, tolerance), where)


def batch_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    tolerance: float | None = None,
    seed: int = 0,
) -> LeakReport:
    """Change one sample: the outputs of the others may not notice.

    Finds attention over the wrong axis (``batch_first``), statistics taken
    over the batch, and masks that the model makes of its inputs and repeats
    in the wrong order. A mask that comes from elsewhere does not change with
    them: :func:`padding_leak` finds that one.

    Args:
        model: the callable to examine.
        inputs: features ``(B, T, ...)`` or token ids ``(B, T)``, ``B > 1``.
        tolerance: largest change that counts as rounding; by default a
            hundred units in the last place of the largest output.
        seed: seed of the changes.

    Returns:
        A report; true if samples leak into each other.

    Raises:
        TypeError: if ``inputs`` are no tensor.
        ValueError: if there is one sample only, or the model is random.

    Example:
        >>> center = lambda x: x - x.mean(0)
        >>> bool(batch_leak(center, torch.randn(3, 2, 4)))
        True

    Built in :ref:`section 5.8 <sec-leak-detectors>`.
    """
    _check_call(model, inputs, seed)
    if len(inputs) < 2:
        raise ValueError("inputs must hold at least two samples")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        before = _baseline(model, inputs)
        other = _noise(inputs, generator)
        largest, where = 0.0, ""
        for sample in range(len(inputs)):
            changed = inputs.clone()
            changed[sample] = other[sample]
            change = _change(before, _run(model, changed))
            change[sample] = 0.0
            if float(change.amax()) > largest:
                largest = float(change.amax())
                victim = int(change.amax(1).argmax())
                where = f"sample {victim} depends on sample {sample}"
    return LeakReport("batch", largest, _tolerance(before, tolerance), where)


def order_leak(
    model: Callable[..., Any],
    inputs: Shaped[Tensor, "B T *features"],
    *,
    lengths: Sequence[int] | Shaped[Tensor, " B"] | None = None,
    moves: bool = False,
    tolerance: float | None = None,
    seed: int = 0,
) -> LeakReport:
    """Permute the keys: a weighted sum may not notice.

    Attention treats its keys and values as a set. What depends on their
    order has a position in it, wanted or not.

    Args:
        model: the callable to examine: from the memory (keys and values)
            to the output.
        inputs: the memory ``(B, T, ...)``.
        lengths: permute only so many positions of each sequence, the real
            tokens; all of them if omitted.
        moves: whether the outputs move along with the inputs, as in
            self-attention, where the queries are permuted too.
        tolerance: largest change that counts as rounding; by default a
            hundred units in the last place of the largest output.
        seed: seed of the permutation.

    Returns:
        A report; true if the order matters.

    Raises:
        TypeError: if ``inputs`` are no tensor.
        ValueError: if the model is random, or the shapes do not fit.

    Example:
        >>> print(order_leak(lambda x: x.sum(1), torch.randn(2, 5, 3)))
        order: no leak
        >>> bool(order_leak(lambda x: x[:, :1], torch.randn(2, 5, 3)))
        True

    Built in :ref:`section 5.8 <sec-leak-detectors>`.
    """
    _check_call(model, inputs, seed)
    count, length = inputs.shape[:2]
    ends = _ends_of([length] * count if lengths is None else lengths, inputs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        before = _baseline(model, inputs)
        changed, expected = inputs.clone(), before.clone()
        for sample, end in enumerate(ends):
            # A rotation by at least one leaves no position in its place.
            order = torch.randperm(end, generator=generator)
            new = torch.empty_like(order)
            new[order] = order.roll(1)
            changed[sample, :end] = inputs[sample, new.to(inputs.device)]
            if moves:
                expected[sample, :end] = before[sample, new.to(before.device)]
        change = _change(expected, _run(model, changed))
    sample = int(change.flatten(1).amax(1).argmax())
    return LeakReport(
        "order",
        float(change.amax()),
        _tolerance(before, tolerance),
        f"the output of sample {sample} depends on the order of its inputs",
    )
