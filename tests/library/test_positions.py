"""Positions: sinusoidal, learned, rotary, and who counts them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib.masks import padding_mask
from attention_lib.multihead import MultiHeadAttention
from attention_lib.positions import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    count_positions,
    sinusoidal_encoding,
)

F64 = torch.float64
BOTH = pytest.mark.parametrize("interleaved", [True, False])


def added():
    return [SinusoidalPositions(6), LearnedPositions(12, 6)]


# --- sinusoidal and learned -------------------------------------------------


def test_the_encoding_follows_the_formula_of_the_paper():
    encoding = sinusoidal_encoding(torch.arange(50), 6, dtype=F64)
    for position in range(50):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert encoding[position, 2 * i] == pytest.approx(np.sin(angle))
            assert encoding[position, 2 * i + 1] == pytest.approx(
                np.cos(angle)
            )


@given(
    shift=st.integers(-20, 20),
    pairs=st.integers(1, 8),
    base=st.sampled_from([100.0, 10000.0]),
)
def test_a_shift_is_one_rotation_whatever_the_position(shift, pairs, base):
    d_model = 2 * pairs
    positions = torch.arange(40)
    here, there = (
        sinusoidal_encoding(positions + step, d_model, base=base, dtype=F64)
        for step in (0, shift)
    )
    # The matrix knows the shift and not the position.
    frequencies = base ** (-torch.arange(0, d_model, 2, dtype=F64) / d_model)
    blocks = []
    for angle in (shift * frequencies).tolist():
        sine, cosine = np.sin(angle), np.cos(angle)
        blocks.append(torch.tensor([[cosine, -sine], [sine, cosine]]))
    matrix = torch.block_diag(*blocks).to(F64)
    torch.testing.assert_close(here @ matrix, there)
    torch.testing.assert_close(
        here.norm(dim=1), torch.full((40,), pairs**0.5, dtype=F64)
    )


@pytest.mark.parametrize("number", [0, 1])
def test_added_positions_are_those_given_or_counted_from_zero(number):
    layer = added()[number]
    features = torch.randn(3, 5, 6)
    counted = layer(features)
    table = counted - features
    torch.testing.assert_close(table, table[:1].expand(3, -1, -1))
    torch.testing.assert_close(layer(features, torch.arange(5)), counted)
    rows = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 0, 1], [11, 0, 0, 0, 1]])
    changed = layer(features, rows)
    for sample in range(3):
        alone = layer(features[sample : sample + 1], rows[sample])
        torch.testing.assert_close(changed[sample], alone[0])
    assert not torch.allclose(changed[1], counted[1])


def test_a_learned_table_is_looked_up_and_sines_are_not_learned():
    sinusoidal, learned = added()
    features = torch.zeros(2, 4, 6)
    torch.testing.assert_close(
        learned(features)[1], learned.table.weight[:4].detach()
    )
    torch.testing.assert_close(
        sinusoidal(features)[1], sinusoidal_encoding(torch.arange(4), 6)
    )
    assert not list(sinusoidal.parameters())


@pytest.mark.parametrize("positions", [[3, 12], [-1, 3]])
def test_a_position_without_a_row_is_refused(positions):
    with pytest.raises(ValueError, match="max_length=12"):
        LearnedPositions(12, 6)(torch.zeros(1, 2, 6), torch.tensor(positions))


# --- rotary -----------------------------------------------------------------


def test_rotation_is_multiplication_by_a_complex_number():
    heads = torch.randn(2, 3, 7, 6, dtype=F64)
    positions = torch.arange(7)
    frequencies = 500.0 ** (-torch.arange(0, 6, 2, dtype=F64) / 6)
    turn = torch.exp(1j * positions[:, None] * frequencies)
    expected = torch.view_as_complex(heads.unflatten(-1, (3, 2))) * turn
    torch.testing.assert_close(
        RotaryPositions(6, base=500.0)(heads, positions),
        torch.view_as_real(expected).flatten(-2),
    )


def test_half_split_pairs_are_those_of_llama():
    """rotate_half, as Llama and GPT-NeoX write it."""
    heads = torch.randn(2, 3, 7, 6, dtype=F64)
    frequencies = 10000.0 ** (-torch.arange(0, 6, 2, dtype=F64) / 6)
    angles = (torch.arange(7)[:, None] * frequencies).repeat(1, 2)
    first, second = heads.chunk(2, -1)
    halves = torch.cat([-second, first], -1)
    torch.testing.assert_close(
        RotaryPositions(6, interleaved=False)(heads, torch.arange(7)),
        heads * angles.cos() + halves * angles.sin(),
    )


@BOTH
@given(
    places=st.tuples(st.integers(0, 500), st.integers(0, 500)),
    shift=st.integers(-500, 500),
)
def test_rotary_scores_depend_on_the_distance_alone(
    interleaved, places, shift
):
    rotary = RotaryPositions(8, interleaved=interleaved)
    query, key = torch.linspace(-1, 2, 16, dtype=F64).view(2, 1, 8)

    def score(at_query, at_key):
        turned = rotary(query, torch.tensor([at_query]))
        return turned @ rotary(key, torch.tensor([at_key])).mT

    there = score(places[0] + shift, places[1] + shift)
    torch.testing.assert_close(score(*places), there)


@BOTH
def test_rotation_keeps_lengths_and_leaves_position_zero_alone(interleaved):
    heads = torch.randn(4, 11, 6, dtype=F64)
    turned = RotaryPositions(6, interleaved=interleaved)(
        heads, torch.arange(11)
    )
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1))
    torch.testing.assert_close(turned[:, 0], heads[:, 0])
    assert (turned[:, 1:] - heads[:, 1:]).abs().amax(-1).min() > 1e-3


@BOTH
def test_rotation_takes_other_positions_for_each_sample(interleaved):
    rotary = RotaryPositions(4, interleaved=interleaved)
    heads = torch.randn(2, 2, 3, 4, dtype=F64)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    turned = rotary(heads, positions)
    for sample in range(2):
        torch.testing.assert_close(
            turned[sample], rotary(heads[sample], positions[sample])
        )


@BOTH
def test_rotation_has_the_right_gradient_and_writes_to_nothing(interleaved):
    rotary = RotaryPositions(4, interleaved=interleaved)
    heads = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: rotary(x, torch.arange(3)), heads
    )
    before = heads.detach().clone()
    rotary(heads, torch.arange(3))
    assert torch.equal(before, heads.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_not_computed_in_half_precision(dtype):
    """bfloat16 cannot tell 256 from 257; their encodings differ."""
    positions = torch.tensor([256, 257, 1001])
    narrow = sinusoidal_encoding(positions, 8, dtype=dtype)
    assert narrow.dtype == dtype
    wide = sinusoidal_encoding(positions, 8)
    torch.testing.assert_close(narrow, wide.to(dtype))
    heads = torch.randn(3, 8).to(dtype)
    turned = RotaryPositions(8).to(dtype)(heads, positions)
    assert turned.dtype == dtype
    wide = RotaryPositions(8)(heads.float(), positions)
    torch.testing.assert_close(turned, wide.to(dtype))


@pytest.mark.plain
def test_odd_widths_are_refused_when_built():
    for build in (
        lambda: sinusoidal_encoding(torch.arange(3), 5),
        lambda: SinusoidalPositions(5),
        lambda: RotaryPositions(5),
    ):
        with pytest.raises(ValueError, match=r"must be even.*got 5"):
            build()


@pytest.mark.plain
def test_positions_are_one_for_each_place():
    rotary = RotaryPositions(4)
    for layer in (*added(), lambda x, p: rotary(x[..., :4], p)):
        with pytest.raises(ValueError, match="positions of shape"):
            layer(torch.zeros(1, 3, 6), torch.tensor([4]))


# --- in a layer -------------------------------------------------------------


def test_a_layer_turns_queries_and_keys_and_not_values():
    rotary = RotaryPositions(4)
    layer = MultiHeadAttention(4, 1, rotary=rotary).double()
    x, positions = torch.randn(2, 5, 4, dtype=F64), torch.arange(5) + 3
    query, key = (
        rotary(projection(x)[:, None], positions)
        for projection in (layer.query_proj, layer.key_proj)
    )
    context = (
        torch.softmax(query @ key.mT / 2, -1) @ layer.value_proj(x)[:, None]
    )
    torch.testing.assert_close(
        layer(x, positions=positions)[0], layer.output_proj(context[:, 0])
    )


def test_a_rotary_layer_ignores_where_the_sequence_begins():
    """Only distances count, so padding in front changes nothing."""
    layer = MultiHeadAttention(8, 2, rotary=RotaryPositions(4)).double()
    x = torch.randn(3, 5, 8, dtype=F64)
    padded = torch.cat([torch.randn(3, 4, 8, dtype=F64), x], dim=1)
    mask = padding_mask([5, 5, 5], 9, side="left")
    torch.testing.assert_close(layer(padded, mask=mask)[0][:, 4:], layer(x)[0])
    torch.testing.assert_close(
        layer(x, positions=torch.arange(5) + 7)[0], layer(x)[0]
    )


# --- counting ---------------------------------------------------------------


def test_positions_go_on_from_the_cache_and_from_the_first_real_token():
    tokens = torch.zeros(3, 2, dtype=torch.long)
    assert count_positions(tokens, cached=3).tolist() == [3, 4]
    mask = padding_mask([5, 2, 0], 5, side="left")
    counted = count_positions(tokens, mask, cached=3)
    assert counted.tolist() == [[3, 4], [0, 1], [0, 0]]
    # A hole in the middle is no padding, and other masks say nothing.
    mask[0, 0, 2] = False
    assert count_positions(tokens, mask, cached=3)[0].tolist() == [3, 4]
    rows = mask.expand(3, 2, 5)
    assert count_positions(tokens, rows, cached=3).tolist() == [3, 4]
    assert count_positions(tokens[:, :0], mask[..., :0]).shape == (3, 0)


# --- compilers, transforms, shapes without numbers --------------------------


@pytest.mark.plain
@pytest.mark.parametrize("number", range(4))
def test_positions_compile_map_and_go_without_numbers(number):
    layer = [
        *added(),
        RotaryPositions(6),
        RotaryPositions(6, interleaved=False),
    ]
    layer = layer[number]
    features, positions = torch.randn(2, 3, 5, 6), torch.arange(5)
    expected = layer(features, positions)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features, positions), expected)
    mapped = torch.vmap(layer, in_dims=(0, None))(features, positions)
    torch.testing.assert_close(mapped, expected)
    rows = torch.stack([positions, positions.flip(0)])
    expected = torch.stack(
        [layer(*pair) for pair in zip(features, rows, strict=True)]
    )
    torch.testing.assert_close(torch.vmap(layer)(features, rows), expected)
    nowhere = layer.to("meta")(features.to("meta"), positions.to("meta"))
    assert nowhere.shape == features.shape
