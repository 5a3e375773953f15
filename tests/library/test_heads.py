"""Gates on the heads of a trained layer."""

import pytest
import torch
from layers import randomised

from attention_lib.measures import head_gates
from attention_lib.multihead import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)


def layer_of(heads, d_model=12):
    return randomised(MultiHeadAttention(d_model, heads).double(), std=1.0)


# Gates


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_gates_weigh_the_terms_of_the_sum_over_heads(heads):
    layer = layer_of(heads)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    gates = torch.randn(heads, dtype=torch.float64)
    context = []
    handle = layer.output_proj.register_forward_pre_hook(
        lambda _, inputs: context.append(inputs[0])
    )
    whole, weights = layer(x, need_weights=True)
    handle.remove()
    expected = layer.output_proj.bias + sum(
        gates[head]
        * split_heads(context[0], heads)[:, head]
        @ layer.output_proj.weight.chunk(heads, dim=1)[head].T
        for head in range(heads)
    )
    with head_gates(layer, gates):
        gated, same_weights = layer(x, need_weights=True)
    torch.testing.assert_close(gated, expected)
    assert torch.equal(same_weights, weights)
    assert torch.equal(layer(x, need_weights=True)[0], whole)


def test_open_gates_change_nothing_and_closed_ones_leave_the_bias():
    layer = layer_of(3)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    with head_gates(layer, torch.ones(3)):
        assert torch.equal(layer(x)[0], layer_output(layer, x))
    with head_gates(layer, torch.zeros(3)):
        assert torch.equal(
            layer(x)[0], layer.output_proj.bias.expand(2, 5, 12)
        )


def layer_output(layer, x):
    context = torch.nn.functional.scaled_dot_product_attention(
        *layer.project(x, x, x)
    )
    return torch.nn.functional.linear(
        merge_heads(context),
        layer.output_proj.weight,
        layer.output_proj.bias,
    )


def test_gates_are_lifted_after_the_block_even_after_an_error():
    layer = layer_of(2)
    x = torch.randn(1, 3, 12, dtype=torch.float64)
    before, state = layer(x)[0], dict(layer.state_dict())
    with (
        pytest.raises(RuntimeError, match="inside"),
        head_gates(layer, torch.zeros(2)),
    ):
        raise RuntimeError("inside")
    assert torch.equal(layer(x)[0], before)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_a_gradient_reaches_the_gates():
    layer = layer_of(3)
    x = torch.randn(2, 4, 12, dtype=torch.float64)

    def gated(gates):
        with head_gates(layer, gates):
            return layer(x)[0]

    gates = torch.rand(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gated, (gates,))


@pytest.mark.plain
def test_one_gate_is_needed_for_each_head():
    layer = MultiHeadAttention(4, 2)
    for shape in ((3,), (2, 1), ()):
        with (
            pytest.raises(ValueError, match=r"gates.*\(2,\)"),
            head_gates(layer, torch.ones(shape)),
        ):
            pass
