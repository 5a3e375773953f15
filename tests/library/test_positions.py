"""Positions: sinusoidal, learned, rotary, and who counts them."""

import math

import pytest
import torch

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


def added():
    return [SinusoidalPositions(6), LearnedPositions(12, 6)]


def test_the_encoding_follows_the_formula_of_the_paper():
    encoding = sinusoidal_encoding(torch.arange(50), 6, base=500.0, dtype=F64)
    for position in range(50):
        for i in range(3):
            angle = position / 500 ** (2 * i / 6)
            pair = encoding[position, 2 * i : 2 * i + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)])


@pytest.mark.parametrize("number", [0, 1])
def test_added_positions_are_those_given_or_counted_from_zero(number):
    layer, features = added()[number], torch.randn(3, 5, 6)
    tables = [sinusoidal_encoding(torch.arange(12), 6), layer]
    table = layer.table.weight if number else tables[0]
    torch.testing.assert_close(layer(features), features + table[:5])
    rows = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 0, 1], [11, 0, 0, 0, 1]])
    expected = features + table[rows]
    torch.testing.assert_close(layer(features, rows), expected)
    torch.testing.assert_close(layer(features, rows[1])[1], expected[1])


@pytest.mark.parametrize("positions", [[3, 12], [-1, 3]])
def test_a_position_without_a_row_is_refused(positions):
    with pytest.raises(ValueError, match="max_length=12"):
        LearnedPositions(12, 6)(torch.zeros(1, 2, 6), torch.tensor(positions))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_is_multiplication_by_a_complex_number(interleaved):
    heads = torch.randn(2, 3, 7, 6, dtype=F64)
    positions = torch.stack([torch.arange(7), torch.arange(7) * 3 + 5])
    frequencies = 500.0 ** (-torch.arange(0, 6, 2, dtype=F64) / 6)
    turn = torch.exp(1j * positions[:, None, :, None] * frequencies)
    pairs = heads.unflatten(-1, (3, 2))
    if not interleaved:
        pairs = heads.unflatten(-1, (2, 3)).mT
    turned = torch.view_as_complex(pairs.contiguous()) * turn
    turned = torch.view_as_real(turned)
    expected = (turned if interleaved else turned.mT).flatten(-2)
    rotary = RotaryPositions(6, base=500.0, interleaved=interleaved)
    before = heads.clone()
    torch.testing.assert_close(rotary(heads, positions), expected)
    torch.testing.assert_close(rotary(heads[0], positions[0]), expected[0])
    assert torch.equal(heads, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_not_computed_in_half_precision(dtype):
    """bfloat16 cannot tell 256 from 257; their encodings differ."""
    positions = torch.tensor([256, 257, 1001])
    narrow = sinusoidal_encoding(positions, 8, dtype=dtype)
    wide = sinusoidal_encoding(positions, 8)
    torch.testing.assert_close(narrow, wide.to(dtype))
    heads = torch.randn(3, 8).to(dtype)
    turned = RotaryPositions(8).to(dtype)(heads, positions)
    wide = RotaryPositions(8)(heads.float(), positions)
    torch.testing.assert_close(turned, wide.to(dtype))


@pytest.mark.plain
def test_odd_widths_are_refused_when_built():
    for build in (SinusoidalPositions, RotaryPositions):
        with pytest.raises(ValueError, match=r"must be even.*got 5"):
            build(5)


def test_a_rotary_layer_ignores_where_the_sequence_begins():
    """Only distances count, so padding in front changes nothing."""
    layer = MultiHeadAttention(8, 2, rotary=RotaryPositions(4)).double()
    x = torch.randn(3, 5, 8, dtype=F64)
    padded = torch.cat([torch.randn(3, 4, 8, dtype=F64), x], dim=1)
    mask = padding_mask([5, 5, 5], 9, side="left")
    torch.testing.assert_close(layer(padded, mask=mask)[0][:, 4:], layer(x)[0])


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


@pytest.mark.plain
@pytest.mark.parametrize("number", range(3))
def test_positions_compile_map_and_go_without_numbers(number):
    layer = [*added(), RotaryPositions(6, interleaved=False)][number]
    features = torch.randn(2, 3, 5, 6)
    rows = torch.stack([torch.arange(5), torch.arange(5).flip(0)])
    expected = torch.stack([layer(features[i], rows[i]) for i in (0, 1)])
    torch.testing.assert_close(torch.vmap(layer)(features, rows), expected)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features[0], rows[0]), expected[0])
    nowhere = layer.to("meta")(features.to("meta"), rows[0].to("meta"))
    assert nowhere.shape == features.shape
