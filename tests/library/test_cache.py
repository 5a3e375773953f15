"""A cache gives back what was put in, and a model writes the same with it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_lib.cache import KVCache
from attention_lib.multihead import MultiHeadAttention


def heads(*shape):
    return torch.randn(shape, dtype=torch.float64)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4]),
)
def test_any_portions_give_the_result_of_one_pass(portions, kv_heads):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 4, num_kv_heads=kv_heads).double()
    words, cache, parts = heads(2, sum(portions), 8), KVCache(), []
    with torch.no_grad():
        expected, _ = layer(words, is_causal=True)
        for part in words.split(portions, dim=1):
            parts.append(layer(part, is_causal=True, cache=cache)[0])
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    assert cache.length == sum(portions)
    assert cache.num_bytes == 2 * 2 * kv_heads * 2 * sum(portions) * 8


ROWS = st.lists(st.integers(0, 1), min_size=2, max_size=2)
STEPS = st.one_of(st.integers(0, 4), st.floats(0, 1), ROWS)


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=8))
def test_it_holds_what_a_list_would_hold(steps):
    """Whatever is done to it, and under whichever mode without gradients."""
    cache, keys, values = KVCache(), heads(2, 3, 0, 4), heads(2, 3, 0, 5)
    for step, inferring in steps:
        with torch.inference_mode() if inferring else torch.no_grad():
            if isinstance(step, float):
                length = int(step * cache.length)
                cache.crop(length)
                keys, values = keys[:, :, :length], values[:, :, :length]
            elif isinstance(step, list):
                cache.reorder(torch.tensor(step))
                keys, values = keys[step], values[step]
            else:
                new = heads(2, 3, step, 4), heads(2, 3, step, 5)
                keys = torch.cat([keys, new[0]], -2)
                values = torch.cat([values, new[1]], -2)
                found = cache.update(*new)
                assert all(map(torch.equal, found, (keys, values)))
        assert cache.length == keys.shape[-2]


def test_storing_costs_little_more_than_what_is_stored():
    """Room doubles, so all copies together are at most twice the whole."""
    cache = KVCache()
    for length in range(1, 1001):
        key, _ = cache.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
        room = 2 ** math.ceil(math.log2(length))  # no sooner than it runs out
        assert key.untyped_storage().nbytes() == room * 4 * 4
    assert key.shape == (1, 1, 1000, 4)
    assert key.eq(1).all()


WRONG = {
    "heads differ": lambda key, value: (key, value[:, :1]),
    "lengths differ": lambda key, value: (key, value[:, :, :0]),
    "another batch": lambda key, value: (key[:1], value[:1]),
    "another width": lambda key, value: (key, value[..., :1]),
    "another type": lambda key, value: (key.float(), value.float()),
    "another device": lambda key, value: (key.to("meta"), value.to("meta")),
    "a gradient": lambda key, value: (key, value.requires_grad_()),
}


@pytest.mark.plain
@pytest.mark.parametrize("wrong", WRONG)
def test_it_refuses_what_does_not_belong_and_keeps_what_it_has(wrong):
    cache, (key, value) = KVCache(), heads(2, 2, 2, 3, 4)
    cache.update(key, value)
    with pytest.raises(ValueError, match=r"key|value"):
        cache.update(*WRONG[wrong](*heads(2, 2, 2, 1, 4)))
    for length in (4, -1):
        with pytest.raises(ValueError, match="length"):
            cache.crop(length)
    with pytest.raises(IndexError, match="range"):
        cache.reorder(torch.tensor([0, 2]))
    assert cache.length == 3
    new = heads(2, 2, 2, 1, 4)
    keys, values = cache.update(*new)
    assert torch.equal(keys, torch.cat([key, new[0]], -2))
    assert torch.equal(values, torch.cat([value, new[1]], -2))
