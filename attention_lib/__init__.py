"""Attention mechanisms, exactly as built in the chapters of the course."""

from attention_lib.attention import attend, masked_softmax
from attention_lib.decoder import (
    AttentionDecoder,
    AttentionState,
    alignment_error_rate,
    attention_model,
    evaluate_alignment,
    hard_alignment,
)
from attention_lib.fused import scaled_dot_product_attention
from attention_lib.heads import head_gates, show_heads, show_shapes
from attention_lib.leaks import (
    LeakReport,
    batch_leak,
    future_leak,
    influence,
    order_leak,
    padding_leak,
)
from attention_lib.masks import (
    causal_mask,
    from_key_padding_mask,
    from_mha_mask,
    from_sdpa_mask,
    padding_mask,
    to_key_padding_mask,
    to_mha_mask,
    to_sdpa_mask,
)
from attention_lib.multihead import (
    KVCache,
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
from attention_lib.scoring import (
    AdditiveScore,
    BilinearScore,
    dot_score,
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
    "AdditiveScore",
    "AttentionDecoder",
    "AttentionState",
    "BilinearScore",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "KVCache",
    "LanguageModel",
    "LeakReport",
    "LearnedPositions",
    "MultiHeadAttention",
    "Residual",
    "RotaryMultiHeadAttention",
    "SinusoidalPositions",
    "TransformerBlock",
    "TransformerDecoder",
    "TransformerEncoder",
    "alignment_error_rate",
    "attend",
    "attention_entropy",
    "attention_model",
    "batch_leak",
    "causal_mask",
    "dot_product_moments",
    "dot_score",
    "evaluate_alignment",
    "from_key_padding_mask",
    "from_mha_mask",
    "from_sdpa_mask",
    "future_leak",
    "hard_alignment",
    "head_gates",
    "influence",
    "largest_weight",
    "masked_softmax",
    "merge_heads",
    "order_leak",
    "padding_leak",
    "padding_mask",
    "rotate",
    "scaled_dot_product_attention",
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
    "to_key_padding_mask",
    "to_mha_mask",
    "to_sdpa_mask",
    "transformer_model",
]
