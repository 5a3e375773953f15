"""What the tests of attention, layers and blocks share."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

HALVES = [torch.float16, torch.bfloat16]
BOTH = pytest.mark.parametrize("need_weights", [True, False])


class ListCache:
    """The smallest cache that keeps the protocol."""

    def __init__(self):
        self.key = self.value = None

    @property
    def length(self):
        return 0 if self.key is None else self.key.shape[2]

    def update(self, key, value):
        if self.key is not None:
            key = torch.cat([self.key, key], dim=2)
            value = torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return key, value


class Turn(nn.Module):
    """The smallest rotary: turns the two halves of a head by the position."""

    def forward(self, heads, positions):
        angle = positions[..., None].to(heads.dtype)
        angle = angle[:, None] if angle.dim() == 3 else angle
        left, right = heads.chunk(2, dim=-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat(
            [left * cos - right * sin, left * sin + right * cos], dim=-1
        )


def randomised(module, std=0.5):
    """Give every parameter, biases and norms too, a value that matters."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def gradients(output, inputs):
    """Gradients of a sum in which every entry has a weight of its own."""
    return torch.autograd.grad(
        output, inputs, torch.ones_like(output).cumsum(-1).cos()
    )


def assert_gradients_are_those_of(theirs, ours, **tolerance):
    """Compare every parameter's gradient with that of PyTorch's layer.

    A copy of ours, filled with its gradients, goes through ``to_torch``, so
    that they come in the layout of PyTorch.
    """
    filled = copy.deepcopy(ours)
    for parameter, original in zip(
        filled.parameters(), ours.parameters(), strict=True
    ):
        assert original.grad is not None, "a parameter got no gradient"
        parameter.data = original.grad
    found = dict(filled.to_torch().named_parameters())
    expected = dict(theirs.named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        torch.testing.assert_close(
            found[name].data, parameter.grad, **tolerance
        )


def peak_bytes(function):
    """Return the most memory that was in use at once, by torch's count."""
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(np.cumsum([event.nbytes() for event in changes]), default=0)
