"""Attention mechanisms, exactly as built in the chapters of the course."""

from attention_lib.attention import attend, masked_softmax
from attention_lib.heads import (
    attention_entropy,
    head_gates,
    show_heads,
    show_shapes,
)
from attention_lib.multihead import (
    KeyValueCache,
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from attention_lib.plotting import show_attention, show_links

__version__ = "0.1.0"

__all__ = [
    "KeyValueCache",
    "MultiHeadAttention",
    "attend",
    "attention_entropy",
    "head_gates",
    "masked_softmax",
    "merge_heads",
    "show_attention",
    "show_heads",
    "show_links",
    "show_shapes",
    "split_heads",
]
