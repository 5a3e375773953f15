"""What the score functions promise, each promise as a test."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers import HALVES, peak_bytes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from attention_lib import _numerics
from attention_lib.scores import (
    AdditiveScore,
    BilinearScore,
    dot_score,
    scaled_dot_score,
)

F64 = torch.float64
KINDS = {  # built for queries of width 3 and keys of width 3 or 5
    "dot": lambda key_dim: dot_score,
    "scaled": lambda key_dim: scaled_dot_score,
    "bilinear": lambda key_dim: BilinearScore(3, key_dim),
    "additive": lambda key_dim: AdditiveScore(3, key_dim, 7),
}
EACH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def block(request, monkeypatch):
    """All at once, or additive scores in blocks of one query."""
    monkeypatch.setattr(_numerics, "_BLOCK_CPU", request.param)


BLOCKS = pytest.mark.parametrize("block", [2**18, 1], indirect=True)


def build(kind, dtype=F64, key_dim=3):
    score = KINDS[kind](key_dim)
    return score.to(dtype) if isinstance(score, nn.Module) else score


def normal(*shape, grad=True):
    return torch.randn(shape, dtype=F64, requires_grad=grad)


def formula(score, query, key):
    """Every score as it is written, with all pairs at once."""
    if score is dot_score:
        return (query[..., :, None, :] * key[..., None, :, :]).sum(-1)
    if score is scaled_dot_score:
        return formula(dot_score, query, key) / math.sqrt(query.shape[-1])
    if isinstance(score, BilinearScore):
        return formula(dot_score, query @ score.weight, key)
    left, right = (
        query @ score.query_proj.weight.T,
        key @ score.key_proj.weight.T,
    )
    return (
        left[..., :, None, :] + right[..., None, :, :]
    ).tanh() @ score.vector


@st.composite
def pairs(draw):
    """Leading axes of queries and keys that broadcast, and two lengths."""
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    left, right = (
        [draw(st.sampled_from([1, size])) for size in batch] for _ in "qk"
    )
    if draw(st.booleans()):
        right = right[draw(st.integers(0, len(right))) :]
    return (*left, draw(st.integers(0, 5))), (*right, draw(st.integers(0, 5)))


@EACH
@given(pairs(), st.sampled_from([3, 5]), st.sampled_from([1, 8, 40, 2**18]))
def test_scores_and_gradients_are_those_of_the_formula(
    kind, shapes, key_dim, block
):
    """The additive one in blocks of any size."""
    key_dim = key_dim if kind in ("bilinear", "additive") else 3
    score = build(kind, key_dim=key_dim)
    query, key = normal(*shapes[0], 3), normal(*shapes[1], key_dim)
    leaves = [query, key]
    if isinstance(score, nn.Module):
        leaves += score.parameters()
    wanted = formula(score, query, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_numerics, "_BLOCK_CPU", block)
        found = score(query, key)
        torch.testing.assert_close(found, wanted)
        direction = torch.randn_like(wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found, leaves, direction),
            torch.autograd.grad(wanted, leaves, direction),
        )


def test_additive_needs_an_eighth_of_the_plain_forms_memory():
    """tensorflow/tensorflow #35591."""
    B, T, width = 4, 128, 128
    score = AdditiveScore(width, width, width)
    query = torch.randn(B, T, width, requires_grad=True)
    key = torch.randn(B, T, width, requires_grad=True)
    plain = peak_bytes(lambda: formula(score, query, key).sum().backward())
    blocks = peak_bytes(lambda: score(query, key).sum().backward())
    assert blocks <= plain / 8


def test_concat_of_luong_is_the_additive_score():
    score = AdditiveScore(3, 5, 7).double()
    stacked = torch.cat([score.query_proj.weight, score.key_proj.weight], 1)
    query, key = normal(2, 4, 3), normal(2, 6, 5)
    joined = torch.cat(
        [
            query[:, :, None].expand(-1, -1, 6, -1),
            key[:, None].expand(-1, 4, -1, -1),
        ],
        dim=-1,
    )
    concat = torch.tanh(joined @ stacked.T) @ score.vector
    torch.testing.assert_close(score(query, key), concat)


def test_the_scale_is_that_of_one_head_and_may_be_anything():
    """vit-pytorch #65: one over the root of the model width is too small."""
    query, key = torch.ones(1, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    weights = scaled_dot_score(query, key).softmax(-1)
    torch.testing.assert_close(
        weights, torch.tensor([[0.8044, 0.1956]]), atol=1e-4, rtol=0
    )
    for scale in (0.0, -2.5, 8**-0.5):
        torch.testing.assert_close(
            scaled_dot_score(query, key, scale=scale),
            dot_score(query, key) * scale,
        )
    assert scaled_dot_score(torch.ones(2, 0), torch.ones(3, 0)).tolist() == (
        [[0.0] * 3] * 2
    )


@EACH
@pytest.mark.parametrize("dtype", HALVES)
def test_half_inputs_are_scored_in_float32(kind, dtype):
    score = build(kind, dtype)
    query, key = (
        normal(2, n, 3).to(dtype).detach().requires_grad_() for n in (3, 5)
    )
    scores = score(query, key)
    wide = build(kind, torch.float32)
    if isinstance(score, nn.Module):
        wide.load_state_dict(score.state_dict())
    expected = wide(query.float(), key.float())
    with torch.autocast("cpu", dtype=dtype):  # changes no digit either
        assert torch.equal(wide(query.float(), key.float()), expected)
    close = {"rtol": 1e-5, "atol": 1e-5}
    if kind == "additive":  # its projections are those of the layer
        close = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps}
    torch.testing.assert_close(scores, expected, **close)
    scores.sum().backward()
    assert query.grad.dtype == key.grad.dtype == dtype


def test_scores_that_half_precision_cannot_hold_are_finite():
    """pytorch/pytorch #160841; and a float32 that fits once it is scaled."""
    half = torch.full((1, 2, 80), 256.0, dtype=torch.float16)
    assert (dot_score(half, half) == 256.0**2 * 80).all()
    huge = torch.full((1, 4), 1.2e19)
    assert torch.isinf(dot_score(huge, huge)).all()
    assert torch.isfinite(scaled_dot_score(huge, huge)).all()


@pytest.mark.filterwarnings("ignore:.torch.jit")
@BLOCKS
@EACH
def test_derivatives_are_those_of_finite_differences(kind, block):
    """One tensor may be query and key; leading axes may broadcast."""
    score = build(kind)
    query, key = normal(2, 1, 2, 3), normal(3, 2, 3)
    assert gradcheck(score, (query, key), check_forward_ad=True)
    assert gradcheck(lambda x: score(x, x), (normal(2, 3),))
    assert gradgradcheck(score, (query, key))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@BLOCKS
@EACH
def test_scores_are_mapped_and_known_without_numbers(kind, block):
    score, query, key = build(kind), normal(4, 2, 3), normal(4, 5, 3)

    def loss(query, key):
        return score(query, key).sin().sum()

    gradient = torch.func.grad(loss)
    torch.testing.assert_close(
        torch.vmap(gradient)(query, key), gradient(query, key)
    )
    with FakeTensorMode():
        fake = torch.empty(2, 1, 4, 3), torch.empty(5, 6, 3)
        assert KINDS[kind](3)(*fake).shape == (2, 5, 4, 6)
    if isinstance(score, nn.Module):
        score.to("meta")
    assert score(query.to("meta"), key.to("meta")).shape == (4, 2, 5)


@pytest.mark.plain
@BLOCKS
@EACH
def test_scores_compile_into_one_graph_forward_and_backward(kind, block):
    score = build(kind)
    torch._dynamo.reset()
    compiled = torch.compile(score, fullgraph=True, backend="aot_eager")
    for B, Tq, Tk in ((2, 4, 6), (3, 5, 2)):
        query, key = normal(B, Tq, 3), normal(B, Tk, 3)
        torch.testing.assert_close(
            *(
                torch.autograd.grad(f(query, key).sin().sum(), (query, key))
                for f in (score, compiled)
            )
        )


def test_parameters_have_the_promised_names_shapes_and_start():
    bilinear, additive = BilinearScore(3, 400), AdditiveScore(3, 5, 400)
    assert {n: tuple(p.shape) for n, p in bilinear.named_parameters()} == {
        "weight": (3, 400)
    }
    assert {n: tuple(p.shape) for n, p in additive.named_parameters()} == {
        "query_proj.weight": (400, 3),
        "key_proj.weight": (400, 5),
        "vector": (400,),
    }
    for tensor, bound in (
        (bilinear.weight, 3**-0.5),
        (additive.vector, 1 / 20),
    ):
        assert -bound <= tensor.min() < -0.9 * bound
        assert 0.9 * bound < tensor.max() <= bound


@EACH
def test_scores_write_to_nothing_and_can_be_stored(kind):
    score = build(kind)
    query = torch.randn(3, 4, 2, dtype=F64).permute(2, 1, 0)
    key = torch.randn(2, 6, 6, dtype=F64)[:, ::2, ::2]
    before = query.clone(), key.clone()
    scores = score(query, key)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])
    np.testing.assert_allclose(
        scores.detach(), score(*before).detach(), rtol=1e-12
    )
    again = pickle.loads(pickle.dumps(score))
    assert torch.equal(again(query, key), scores)
