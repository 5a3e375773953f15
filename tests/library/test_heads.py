"""Looking into a trained layer: entropy, gates, pictures."""

import matplotlib as mpl
import pytest
import torch
from drawing import assert_tidy
from layers import randomised

mpl.use("Agg")

import matplotlib.pyplot as plt

from attention_lib.measures import head_gates
from attention_lib.multihead import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from attention_lib.plotting import show_heads, show_shapes

SHAPES = {
    **dict.fromkeys(("query", "key", "value"), (2, 4, 12)),
    **{f"{name} heads": (2, 3, 4, 4) for name in ("query", "key", "value")},
    "scores": (2, 3, 4, 5),
    "weights": (2, 3, 4, 5),
    "context": (2, 3, 4, 4),
    "merged": (2, 4, 12),
    "output": (2, 4, 12),
}


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


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


# Pictures


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
def test_every_head_has_its_own_map_and_title(heads):
    weights = torch.rand(heads, 3, 5).softmax(-1)
    figure = show_heads(weights, list("abc"), list("vwxyz"))
    drawn = figure.axes[:heads]
    assert [ax.get_title() for ax in drawn] == [
        f"head {number}" for number in range(1, heads + 1)
    ]
    for ax, expected in zip(drawn, weights, strict=True):
        shown = torch.as_tensor(ax.collections[0].get_array())
        torch.testing.assert_close(shown.reshape(3, 5).float(), expected)
        assert ax.collections[0].get_clim() == (0.0, 1.0)
    bars = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert len(bars) == 1
    figure.canvas.draw()


def test_titles_can_be_given():
    figure = show_heads(
        torch.ones(2, 1, 1), ["a"], ["b"], titles=["left", "right"]
    )
    assert [ax.get_title() for ax in figure.axes[:2]] == ["left", "right"]


@pytest.mark.plain
def test_what_cannot_be_drawn_is_refused_by_name():
    with pytest.raises(ValueError, match=r"weights.*\(1, 2, 3, 4\)"):
        show_heads(torch.ones(1, 2, 3, 4), list("abc"), list("abcd"))
    with pytest.raises(ValueError, match="titles has 1 entries, weights 2"):
        show_heads(torch.ones(2, 1, 1), ["a"], ["b"], titles=["one"])
    with pytest.raises(ValueError, match=r"key_tokens.*1.*2"):
        show_heads(torch.ones(2, 1, 2), ["a"], ["b"])
    with pytest.raises(ValueError, match="shapes must name query, key"):
        show_shapes({"query": (1, 2, 3)})


def test_the_flow_shows_the_shapes_it_was_given():
    ax = show_shapes(SHAPES)
    texts = [text.get_text() for text in ax.texts]
    assert "scores\n(2, 3, 4, 5)" in texts
    assert "output\n(2, 4, 12)" in texts
    assert sum("(2, 3, 4, 4)" in text for text in texts) == 4
    assert_tidy(ax)


def test_the_flow_has_room_for_the_shapes_of_a_large_layer():
    wide = dict.fromkeys(SHAPES, (64, 4096, 2048))
    wide |= {name: (64, 16, 4096, 128) for name in SHAPES if " " in name}
    assert_tidy(show_shapes(wide))
