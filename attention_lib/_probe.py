"""Ask a model again with changed inputs, and compare: below ``leaks``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from attention_lib._checks import check_number, check_sizes, check_type
from attention_lib.masks import causal_mask, padding_mask


def _modules(part: Any, depth: int = 3) -> list[nn.Module]:
    """Find the modules that a callable runs, as far as it shows them."""
    inner: list[Any] = []
    if isinstance(part, nn.Module):
        return list(part.modules())
    if isinstance(part, functools.partial):
        inner = [part.func, *part.args, *part.keywords.values()]
    elif inspect.ismethod(part):
        inner = [part.__self__, part.__func__]
    elif inspect.isfunction(part):
        scope = inspect.getclosurevars(part)
        inner = [*scope.nonlocals.values(), *scope.globals.values()]
        inner += part.__defaults__ or ()
    return [m for each in inner if depth for m in _modules(each, depth - 1)]


@contextmanager
def _put_back(modules: list[nn.Module]) -> Iterator[None]:
    """Give modules their attributes and buffers back in the end."""
    boxes = [box for m in modules for box in (vars(m), m._buffers)]
    saved = [(box, dict(box)) for box in boxes]
    held = [v for box in boxes for v in box.values() if isinstance(v, Tensor)]
    copies = [tensor.clone() for tensor in held]
    try:
        yield
    finally:
        for box, content in saved:
            box.clear()
            box.update(content)
        for tensor, value in zip(held, copies, strict=True):
            if not torch.equal(tensor, value):
                tensor.copy_(value)


def _read(output: Any, count: int) -> tuple[Tensor, str]:
    """Return the first floating output ``(B, Tq, ...)``, and its name."""
    parts: Mapping[Any, Any] = {0: output}
    if isinstance(output, Mapping):
        parts = output
    elif isinstance(output, tuple | list):
        parts = dict(enumerate(output))
    for name, part in parts.items():
        fits = isinstance(part, Tensor) and part.dim() > 1
        fits = fits and part.shape[0] == count
        if fits and (part.is_floating_point() or len(parts) == 1):
            return part, f"read from {name!r}" if name else ""
    shapes = [getattr(part, "shape", type(part)) for part in parts.values()]
    raise ValueError(
        f"model must return an output (B, Tq, ...) with B = {count}, or a "
        f"collection with one, got {type(output).__name__} of {shapes}"
    )


class Probe:
    """What a model answers, and which answers move when inputs change.

    Answers are ``(B, Tq, features)``. Up to 8 units in the last place (of
    types with 16 bits; 128 of others) count as rounding, at the size of the
    number or of a typical output, whichever is larger.
    """

    before: Tensor
    other: Tensor

    def __init__(
        self,
        model: Callable[..., Any],
        inputs: Tensor,
        options: dict[str, Any],
        tolerance: float | None,
        pooled: bool,
    ) -> None:
        self.model, self.inputs, self.options = model, inputs, options
        self.tolerance, self.pooled = tolerance, pooled
        self.samples = torch.arange(len(inputs), device="cpu")[:, None]
        self.positions = torch.arange(inputs.shape[1], device="cpu")
        self.generator = torch.Generator("cpu")
        self.types, self.worst = {inputs.dtype}, (False, 0.0, 0.0, "")
        self.notes = list[str]()

    def start(self) -> None:
        """Get the answer to compare with, and insist on one answer."""
        self.before = self.answer(self.inputs)
        for seed, fault in (
            (0, "keeps a state (a cache, a count): give one that starts anew"),
            (1, "is random: switch its dropout off with model.eval()"),
        ):
            change, limit = self.compare(self.answer(self.inputs, seed=seed))
            if bool((change > limit).any()):
                raise ValueError(f"model answers in two ways; it {fault}")
        if dead := int(self.before.isnan().sum()):
            if dead == self.before.numel():
                raise ValueError("model returns nothing but NaN")
            self.notes.append(
                f"left out {dead} numbers that are NaN without any change, "
                "as of a row with nothing to attend to"
            )

    def answer(
        self, inputs: Tensor, model: Any = None, seed: int = 0
    ) -> Tensor:
        """Run the model on copies, which it may write to."""
        torch.manual_seed(seed)
        options = {
            name: option.clone() if isinstance(option, Tensor) else option
            for name, option in self.options.items()
        }
        answer = (model or self.model)(inputs.clone(), **options)
        output, note = _read(answer, len(inputs))
        self.notes = self.notes or [note] * bool(note)
        if not output.is_floating_point():
            self.types.clear()  # ids are equal or not
        self.types.add(output.dtype)
        if output.dim() == 2:
            pooled = self.pooled or output.shape[1] != inputs.shape[1]
            output = output.unsqueeze(1 if pooled else 2)
        narrow = output.is_floating_point() and output.dtype != torch.float64
        wide = torch.float32 if narrow else torch.float64
        return output.flatten(2).to("cpu", wide, copy=True)

    def draw(self, scale: float) -> None:
        """Draw inputs that differ everywhere: noise added, or other ids."""
        noise = torch.empty(self.inputs.shape, device="cpu")
        if self.inputs.is_floating_point():
            inputs = self.inputs.cpu().double().nan_to_num(0.0, 0.0, 0.0)
            size = float(inputs.square().mean().sqrt()) or 1.0
            noise.normal_(generator=self.generator)
            inputs = inputs + scale * size * noise
        else:
            inputs = self.inputs.cpu().long()
            high = max(1, int(inputs.max()))
            low = min(high - 1, int(inputs.min()))
            noise.random_(1, high - low + 1, generator=self.generator)
            inputs = low + (inputs - low + noise.long()) % (high - low + 1)
        self.other = inputs.to(self.inputs)

    def replace(self, spots: Tensor) -> Tensor:
        """Answer inputs with others at ``spots``, ``(B, T)``."""
        spots = spots.expand(self.inputs.shape[:2]).to(self.inputs.device)
        spots = spots.reshape(spots.shape + (1,) * (self.inputs.dim() - 2))
        return self.answer(torch.where(spots, self.other, self.inputs))

    def places(self, hint: str, positions: str = "same") -> Tensor:
        """Return the position of each output, ``(Tq,)``."""
        rows, length = self.before.shape[1], len(self.positions)
        if rows > length or (rows < length and positions != "last"):
            raise ValueError(
                f"model returns {rows} outputs for {length} inputs; if that "
                f"is meant, say {hint}"
            )
        return self.positions[length - rows :]

    def compare(
        self, after: Tensor, before: Tensor | None = None, room: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return how far each number moves, and how far by rounding."""
        before = self.before if before is None else before
        if before.shape != after.shape:
            raise ValueError(
                f"model answers (B, Tq, features) = {tuple(after.shape)}, "
                f"expected {tuple(before.shape)}"
            )
        same = (before == after) | (before.isnan() & after.isnan())
        change = (after - before).abs().masked_fill(same, 0.0)
        change = change.nan_to_num(torch.inf, torch.inf, torch.inf)
        if self.tolerance is not None:
            return change, torch.full_like(change, self.tolerance)
        floats = [t for t in self.types if t.is_floating_point]
        eps = max((torch.finfo(t).eps for t in floats), default=0.0)
        sizes = torch.stack([before, after]).nan_to_num(0.0, 0.0, 0.0).abs()
        size = sizes.amax(0).clamp(min=sizes.square().mean().sqrt())
        return change, room * (8 if eps > 1e-4 else 128) * eps * size

    def watch(
        self,
        after: Tensor,
        stays: Tensor,
        cause: str,
        before: Tensor | None = None,
        room: int = 1,
    ) -> None:
        """Note which of the outputs that stay, ``(B, Tq)``, moved most."""
        before = self.before if before is None else before
        change, limit = self.compare(after, before, room)
        change = change.masked_fill(~stays[..., None], 0.0)
        real = change > limit
        order = torch.where(real, change, -1.0) if real.any() else change
        spot = torch.unravel_index(order.argmax(), order.shape)
        verb = "depends on"
        if before[spot].isnan() != after[spot].isnan():
            when = "after" if after[spot].isnan() else "before"
            verb = f"is NaN {when} a change of"
        where = f"output {spot[1]} of sample {spot[0]} {verb} {cause}"
        found = bool(real[spot]), float(change[spot]), float(limit[spot])
        self.worst = max(self.worst, (*found, where if real[spot] else ""))

    def shuffled(self, lengths: Any) -> Tensor:
        """Return the positions ``(B, T)``, none of the real ones in place."""
        order = self.positions.repeat(len(self.samples), 1)
        shape = (*order.shape,)
        real = order >= 0 if lengths is None else real_tokens(shape, lengths)
        for own, spots in zip(order, real, strict=True):
            mixed = torch.randperm(
                len(own), generator=self.generator, device="cpu"
            )
            mixed = mixed[spots[mixed]]
            own[mixed] = mixed.roll(1)
        if torch.equal(self.inputs[self.samples, order], self.inputs):
            raise ValueError("nothing is changed: all keys are equal")
        return order

    def found(self) -> tuple[float, float, str, str]:
        """Return size, limit, place and notes for a report."""
        return *self.worst[1:], "; ".join(self.notes)


@contextmanager
def examine(
    model: Callable[..., Any],
    inputs: Tensor,
    samples: int = 1,
    pooled: bool = False,
    /,
    *,
    tolerance: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Iterator[Probe]:
    """Examine a model, and leave it and the random numbers as they were."""
    check_type("inputs", inputs, Tensor, "a tensor")
    whole = inputs.dim() > 1 and inputs.numel() and not inputs.is_complex()
    if not whole or len(inputs) < samples:
        raise ValueError(
            f"inputs must be real and (B, T, ...) with B at least {samples}, "
            f"got {inputs.dtype} of shape {tuple(inputs.shape)}"
        )
    if tolerance is not None:
        check_number("tolerance", tolerance, low=0.0)
    if isinstance(model, nn.Module):
        inputs = inputs.to(next(model.parameters(), inputs).device)
    modules, device = _modules(model), inputs.device
    probe = Probe(model, inputs, options, tolerance, pooled)
    probe.types |= {p.dtype for m in modules for p in m.parameters(False)}
    if torch.is_autocast_enabled(device.type):
        probe.types.add(torch.get_autocast_dtype(device.type))
    gpus = [device] if inputs.is_cuda else []
    with _put_back(modules), torch.random.fork_rng(gpus), torch.no_grad():
        probe.start()
        # Not the seed itself: it may be the one that the inputs came from.
        probe.generator.manual_seed(seed + 0x5EED)
        probe.draw(10.0)
        yield probe


def _fits(mask: Any, shape: tuple[int, ...]) -> TypeGuard[Tensor]:
    boolean = isinstance(mask, Tensor) and mask.dtype == torch.bool
    return boolean and tuple(mask.shape) == shape


def real_tokens(
    shape: tuple[int, ...],
    lengths: Sequence[int] | Tensor | None,
    keep: Tensor | None = None,
    side: Any = "right",
) -> Tensor:
    """Return where inputs ``(B, T)`` are no padding."""
    if lengths is not None:
        with torch.device("cpu"):
            mask = padding_mask(lengths, shape[1], side=side)[:, 0]
        keep = mask if keep is None else None
    if not _fits(keep, shape):
        raise ValueError(
            "say what is padding either by lengths, one for each sample, or "
            f"by keep, a boolean mask (B, T) = {shape} (or mask.bool())"
        )
    return keep.cpu()


def stay(probe: Probe, rows: str, real: Tensor) -> Tensor:
    """Return which outputs padding must not move, ``(B, Tq)``."""
    if real.all():
        raise ValueError("nothing is changed: every token is real")
    if rows == "all":
        return probe.samples.expand(probe.before.shape[:2]) >= 0
    probe.places("rows='all'")
    return real


def should_see(probe: Probe, expected: Any) -> Tensor:
    """Return which output ``(Tq, T)`` should see which input."""
    shape = (probe.before.shape[1], len(probe.positions))
    reach = {"all": shape[1]} | ({"causal": 0} if shape[0] == shape[1] else {})
    mask = expected
    if isinstance(expected, str) and expected in reach:
        mask = causal_mask(*shape, offset=reach[expected], device="cpu")
    if not _fits(mask, shape):
        raise ValueError(
            "expected must be 'causal' (one output for each input), 'all' or "
            f"a boolean mask (Tq, T) = {shape}"
        )
    return mask.cpu().clone()


def pieces(inputs: Tensor, chunks: Sequence[int]) -> list[Tensor]:
    """Cut inputs into chunks, whose last size repeats."""
    check_sizes(chunks=min(chunks))
    ends = accumulate([*chunks, *[chunks[-1]] * inputs.shape[1]])
    cuts = [end for end in ends if end < inputs.shape[1]]
    if not cuts:
        raise ValueError("nothing is tested: inputs fit into the first chunk")
    return list(inputs.tensor_split(cuts, dim=1))
