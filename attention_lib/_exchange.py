"""Blocks to and from PyTorch's own layers."""

from __future__ import annotations

import copy
import inspect
from typing import Any, TypeVar

import torch
from torch import nn

from attention_lib._checks import check_type
from attention_lib.interop import attention_from_torch, attention_to_torch

_Block = TypeVar("_Block", bound=nn.Module)
# The parts of PyTorch's layers, and of our blocks, in the same order.
_THEIRS = (
    (nn.TransformerEncoderLayer, ["self_attn"], ["norm1", "norm2"]),
    (
        nn.TransformerDecoderLayer,
        ["self_attn", "multihead_attn"],
        ["norm1", "norm2", "norm3"],
    ),
)
_OURS = (["attention"], ["self_attention", "cross_attention"])


def block_from_torch(cls: type[_Block], module: Any) -> _Block:
    """Copy a layer of PyTorch: values, types, devices, training mode."""
    from attention_lib.multihead import MultiHeadAttention
    from attention_lib.transformer import FeedForward

    decodes = "cross_attention" in inspect.signature(cls).parameters
    kind, attentions, norms = _THEIRS[decodes]
    check_type("module", module, kind, f"a torch.nn.{kind.__name__}")
    rates = {
        part.p
        for name, part in module.named_children()
        if name in ("dropout1", "dropout2", "dropout3")
    }
    if len(rates) > 1:
        raise ValueError(
            "module has different dropout probabilities beside its residuals "
            f"({', '.join(map(str, sorted(rates)))}); a block has one"
        )
    act, rate = copy.deepcopy(module.activation), module.dropout.p
    with torch.device("meta"):  # no random number is drawn
        feed_forward = FeedForward(1, 1, activation=act, dropout=rate)
    feed_forward.input_proj = copy.deepcopy(module.linear1)
    feed_forward.output_proj = copy.deepcopy(module.linear2)
    block: Any = cls(
        *(
            attention_from_torch(MultiHeadAttention, getattr(module, name))
            for name in attentions
        ),
        feed_forward,
        *(copy.deepcopy(getattr(module, name)) for name in norms),
        pre_norm=module.norm_first,
        dropout=rates.pop(),
    )
    trained: _Block = block.train(module.training)
    return trained


def block_to_torch(block: Any, batch_first: bool) -> Any:
    """Copy a block into PyTorch's layer, if that has all it has."""
    decodes = hasattr(block, "cross_attention")
    kind, attentions, norms = _THEIRS[decodes]
    feed_forward = block.feed_forward
    parts = [feed_forward, *(getattr(block, name) for name in norms)]
    names = [type(part).__name__ for part in parts]
    if {*names} != {"FeedForward", "LayerNorm"}:
        raise ValueError(
            f"torch.nn.{kind.__name__} has a FeedForward and layer norms, got "
            f"{', '.join(names)}"
        )
    layers = [
        attention_to_torch(getattr(block, name), batch_first)
        for name in _OURS[decodes]
    ]
    module: Any = kind(
        layers[0].embed_dim,
        layers[0].num_heads,
        1,
        block.dropout.p,
        copy.deepcopy(feed_forward.activation),
        batch_first=batch_first,
        norm_first=block.pre_norm,
        device="meta",  # no random number is drawn
    )
    for name, layer in zip(attentions, layers, strict=True):
        setattr(module, name, layer)
    module.dropout.p = feed_forward.dropout.p
    module.linear1 = copy.deepcopy(feed_forward.input_proj)
    module.linear2 = copy.deepcopy(feed_forward.output_proj)
    for name in norms:
        setattr(module, name, copy.deepcopy(getattr(block, name)))
    return module.train(block.training)
