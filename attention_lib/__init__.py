"""Attention mechanisms, exactly as built in the chapters of the course."""

from attention_lib.attention import attend, masked_softmax
from attention_lib.heads import head_gates, show_heads, show_shapes
from attention_lib.multihead import (
    KeyValueCache,
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from attention_lib.plotting import show_attention, show_links
from attention_lib.scaling import (
    attention_entropy,
    dot_product_moments,
    largest_weight,
    scaled_dot_score,
    score_variance,
    softmax_jacobian,
    softmax_jacobian_norm,
)
from attention_lib.transformer import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LanguageModel,
    LearnedPositions,
    Residual,
    RotaryMultiHeadAttention,
    SinusoidalPositions,
    TransformerBlock,
    TransformerDecoder,
    TransformerEncoder,
    rotate,
    sinusoidal_encoding,
    transformer_model,
)

__version__ = "0.1.0"

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "KeyValueCache",
    "LanguageModel",
    "LearnedPositions",
    "MultiHeadAttention",
    "Residual",
    "RotaryMultiHeadAttention",
    "SinusoidalPositions",
    "TransformerBlock",
    "TransformerDecoder",
    "TransformerEncoder",
    "attend",
    "attention_entropy",
    "dot_product_moments",
    "head_gates",
    "largest_weight",
    "masked_softmax",
    "merge_heads",
    "rotate",
    "scaled_dot_score",
    "score_variance",
    "show_attention",
    "show_heads",
    "show_links",
    "show_shapes",
    "sinusoidal_encoding",
    "softmax_jacobian",
    "softmax_jacobian_norm",
    "split_heads",
    "transformer_model",
]
