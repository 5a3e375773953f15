"""Blocks to and from PyTorch's own layers."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from attention_lib._checks import check_type
from attention_lib.interop import attention_from_torch, attention_to_torch

_Block = TypeVar("_Block", bound=nn.Module)
_KINDS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
# What PyTorch calls linear1 is for us feed_forward.input_proj.
_LINEAR = {"linear1": "input_proj", "linear2": "output_proj"}


def _attentions(block: Any) -> dict[str, str]:
    """Name the attentions of a block as PyTorch does, and as we do."""
    if hasattr(block, "cross_attention") or hasattr(block, "multihead_attn"):
        return {
            "self_attn": "self_attention",
            "multihead_attn": "cross_attention",
        }
    return {"self_attn": "attention"}


def _norms(block: Any) -> list[nn.Module]:
    """List the norms of a block, ours or PyTorch's."""
    names = ("norm1", "norm2", "norm3")
    return [getattr(block, name) for name in names if hasattr(block, name)]


def block_from_torch(cls: type[_Block], module: Any) -> _Block:
    """Copy a layer of PyTorch: values, types, devices, training mode."""
    from attention_lib.multihead import MultiHeadAttention
    from attention_lib.transformer import DecoderBlock, FeedForward

    kind = _KINDS[issubclass(cls, DecoderBlock)]
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
    with torch.device("meta"):  # no random number is drawn
        feed_forward = FeedForward(
            1,
            1,
            activation=copy.deepcopy(module.activation),
            dropout=module.dropout.p,
        )
    for theirs, ours in _LINEAR.items():
        setattr(feed_forward, ours, copy.deepcopy(getattr(module, theirs)))
    block: Any = cls(
        *(
            attention_from_torch(MultiHeadAttention, getattr(module, name))
            for name in _attentions(module)
        ),
        feed_forward,
        *copy.deepcopy(_norms(module)),
        pre_norm=module.norm_first,
        dropout=rates.pop(),
    )
    trained: _Block = block.train(module.training)
    return trained


def block_to_torch(block: Any, batch_first: bool) -> Any:
    """Copy a block into PyTorch's layer, if that has all it has."""
    from attention_lib.transformer import FeedForward

    kind: Any = _KINDS[hasattr(block, "cross_attention")]
    feed_forward = block.feed_forward
    norms = _norms(block)
    if type(feed_forward) is not FeedForward or any(
        type(norm) is not nn.LayerNorm for norm in norms
    ):
        raise ValueError(
            f"torch.nn.{kind.__name__} has a FeedForward and layer norms, got "
            f"{type(feed_forward).__name__} and {type(norms[0]).__name__}"
        )
    names = _attentions(block)
    first = getattr(block, names["self_attn"])
    module = kind(
        first.d_model,
        first.num_heads,
        1,
        block.dropout.p,
        copy.deepcopy(feed_forward.activation),
        batch_first=batch_first,
        norm_first=block.pre_norm,
        device="meta",  # no random number is drawn
    )
    module.dropout.p = feed_forward.dropout.p
    for theirs, ours in names.items():
        attention = attention_to_torch(getattr(block, ours), batch_first)
        setattr(module, theirs, attention)
    for theirs, ours in _LINEAR.items():
        setattr(module, theirs, copy.deepcopy(getattr(feed_forward, ours)))
    for number, norm in enumerate(norms, 1):
        setattr(module, f"norm{number}", copy.deepcopy(norm))
    return module.train(block.training)
