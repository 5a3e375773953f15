"""Attention mechanisms, exactly as built in the chapters of the course."""

from attention_lib.attention import attend, masked_softmax
from attention_lib.plotting import show_attention, show_links

__version__ = "0.1.0"

__all__ = [
    "attend",
    "masked_softmax",
    "show_attention",
    "show_links",
]
