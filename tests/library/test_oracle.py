"""All ways to compute attention agree with the oracle, whatever comes in.

Shapes (empty ones too), types, memory layouts, grouped heads, masks of every
rank, biases, scales and rows with nothing to attend to are drawn; NaN and
infinity lie where no query of their sample looks. Context, weights and
gradients must be those of the formula in float64, and nothing be written to.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attention_lib as lib
from attention_lib import reference


def by_attend(
    query, key, value, *, mask=None, bias=None, is_causal=False, scale=None
):
    """The same from ``attend``: one mask for all, no groups."""
    if mask is not None and mask.dim() == 3 and query.dim() == 4:
        mask = mask[:, None]
    if bias is not None:
        keep = torch.ones(query.shape[:-1], dtype=torch.bool)[..., None]
        keep = keep & (bias != -torch.inf)
        mask = keep if mask is None else mask & keep
    if is_causal:
        causal = lib.causal_mask(query.shape[-2], key.shape[-2])
        mask = causal if mask is None else mask & causal
    if query.dim() == 4 and 1 < key.shape[1] < query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))

    def score(query, key):
        scores = lib.scaled_dot_score(query, key, scale=scale)
        return scores if bias is None else scores + bias

    return lib.attend(query, key, value, score=score, mask=mask)


# Every function with the signature of scaled_dot_product_attention.
WAYS = {
    "formula": partial(lib.scaled_dot_product_attention, need_weights=True),
    "kernel": lib.scaled_dot_product_attention,
    "attend": by_attend,
}
PRECISION = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 1.5e-3,
    torch.bfloat16: 1.2e-2,
}


class Problem(NamedTuple):
    """Inputs, options, and what may be seen: ``(..., Tq, Tk)``."""

    inputs: list[Tensor]
    options: dict
    allowed: Tensor
    groups: int


def laid_out(tensor, way):
    """The same numbers, lying in memory in some other way."""
    if way == "turned" and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    if way == "with gaps":
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    return tensor


@st.composite
def problems(draw):
    size = st.sampled_from((2, 3, 1, 4, 2, 3, 1, 0))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float64, *PRECISION]))

    def normal(*shape):
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        layout = draw(st.sampled_from(["plain", "turned", "with gaps"]))
        return laid_out((2 * numbers).to(dtype), layout)

    def coin(*shape):
        return torch.rand(shape, generator=generator) < 0.6

    def some(*shape):
        """A shape that broadcasts to this one."""
        return [draw(st.sampled_from([1, n])) for n in shape]

    rank = draw(st.sampled_from((2, 2, 1, 0, 3)))
    lead = tuple(draw(size) for _ in range(rank))
    Tq, Tk, d_k, d_v = (draw(size) for _ in range(4))
    groups, key_lead = 1, lead
    if len(lead) == 2 and lead[1] > 0 and draw(st.booleans()):
        groups = draw(st.integers(2, 3))
        lead = (lead[0], lead[1] * groups)
    if lead and draw(st.booleans()):  # one key for all samples
        key_lead = (1, *key_lead[1:])

    sample_masks = len(lead) == 2  # three axes are (B, Tq or 1, Tk)
    allowed, mask = torch.ones(*lead, Tq, Tk, dtype=torch.bool), None
    if draw(st.booleans()):
        rank = draw(st.integers(0, len(lead) + 2))
        shape = some(*lead, Tq, Tk)[len(lead) + 2 - rank :]
        if sample_masks and rank == 3:
            shape[0] = draw(st.sampled_from([1, lead[0]]))
        mask = coin(*shape)
    if lead and len(lead) < 3 and draw(st.booleans()):
        lengths = torch.randint(0, Tk + 1, lead[:1], generator=generator)
        padding = torch.arange(Tk) < lengths[:, None, None]
        padding = padding.flip(-1) if draw(st.booleans()) else padding
        if mask is not None and mask.dim() > 3:
            padding = padding[:, None]
        mask = padding if mask is None else mask & padding
    if draw(st.booleans()):
        corner = torch.ones(Tq, Tk).tril(draw(st.integers(-1, 3))) > 0
        mask = corner if mask is None else mask & corner
    is_causal, bias = draw(st.booleans()), None
    if mask is not None:
        lined_up = mask[:, None] if sample_masks and mask.dim() == 3 else mask
        allowed = allowed & lined_up
    if is_causal:
        allowed = allowed.tril(Tk - Tq)
    if draw(st.booleans()):
        bias = normal(*some(*lead, Tq, Tk)[draw(st.integers(0, len(lead))) :])
        bias = bias.masked_fill(
            coin(*bias.shape) & coin(*bias.shape), -torch.inf
        )
        allowed = allowed & (bias != -torch.inf)
    scale = draw(st.sampled_from([None, 0.7, -1.3, 0.0]))
    return Problem(
        [
            normal(*lead, Tq, d_k),
            normal(*key_lead, Tk, d_k),
            normal(*key_lead, Tk, d_v),
        ],
        {"mask": mask, "bias": bias, "is_causal": is_causal, "scale": scale},
        allowed,
        groups,
    )


def oracle(problem):
    """Context and weights by the formula as it is written, in float64."""
    query, key, value = (tensor.double() for tensor in problem.inputs)
    bias, scale = problem.options["bias"], problem.options["scale"]
    if problem.groups > 1:  # heads 0, 0, 1, 1: neighbours share a key
        key, value = (
            tensor.repeat_interleave(problem.groups, dim=1)
            for tensor in (key, value)
        )
    if scale is None:
        scale = max(query.shape[-1], 1) ** -0.5
    scores = scale * (query @ key.mT)
    if bias is not None:
        scores = scores + torch.where(bias == -torch.inf, 0.0, bias).double()
    highest = scores.detach().masked_fill(~problem.allowed, -1e3)
    highest = highest.amax(-1, keepdim=True) if scores.shape[-1] else 0.0
    powers = torch.where(problem.allowed, scores - highest, -torch.inf).exp()
    weights = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    np.testing.assert_allclose(
        weights.detach(),
        reference.softmax(scores.detach(), problem.allowed),
        atol=1e-14,
    )
    return weights @ value, weights


def spoil(problem, garbage):
    """Put NaN or infinity where no query of the sample looks."""
    query, key, value = problem.inputs
    seen = problem.allowed.any(-2)
    if seen.dim() > 2:  # of any head
        seen = seen.any(-2, keepdim=True)
    if seen.dim() > 1 and key.shape[0] == 1:  # of any sample
        seen = seen.any(0, keepdim=True)
    hidden = ~seen[..., None]
    return [
        query,
        torch.where(hidden, garbage, key),
        torch.where(hidden, garbage, value),
    ]


def assert_close(found, wanted, dtype, size):
    """Compare up to a few roundings of numbers of this size."""
    assert found.shape == wanted.shape
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), wanted, rtol=0, atol=PRECISION[dtype] * size
    )


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=300)
@given(
    problem=problems(),
    garbage=st.sampled_from([None, torch.nan, torch.inf, -torch.inf]),
)
def test_every_way_gives_context_weights_and_gradients_of_the_oracle(
    way, problem, garbage
):
    leaves = [tensor.requires_grad_() for tensor in problem.inputs]
    bias = problem.options["bias"]
    if bias is not None:
        leaves.append(bias.requires_grad_())
    wanted = oracle(problem)
    inputs = leaves[:3] if garbage is None else spoil(problem, garbage)
    given_in = [*inputs, bias, problem.options["mask"]]
    given_in = [tensor for tensor in given_in if tensor is not None]
    before = [tensor.detach().clone() for tensor in given_in]

    found = WAYS[way](*inputs, **problem.options)

    dtype = inputs[0].dtype
    largest = 1.0 + max(
        max(tensor.detach().abs().flatten().tolist(), default=0.0)
        for tensor in leaves[:3]
    )
    pairs = [
        pair for pair in zip(found, wanted, strict=True) if pair[0] is not None
    ]
    for mine, right in pairs:
        assert_close(mine, right, dtype, largest)
    sums = [0.0, 0.0]
    for parts in pairs:
        direction = torch.randn_like(parts[1])
        for index, part in enumerate(parts):
            sums[index] += (part.double() * direction).sum()
    mine, right = (
        torch.autograd.grad(
            total, leaves, allow_unused=True, materialize_grads=True
        )
        for total in sums
    )
    for gradient, expected in zip(mine, right, strict=True):
        assert_close(gradient, expected.double(), dtype, 3 * largest**2)
    for tensor, copy in zip(given_in, before, strict=True):
        assert torch.equal(tensor.nan_to_num(7.0), copy.nan_to_num(7.0))
