"""Attention mechanisms, exactly as built in the chapters of the course."""

from attention_lib.attention import (
    attend,
    masked_softmax,
    scaled_dot_product_attention,
)
from attention_lib.cache import (
    KVCache,
)
from attention_lib.efficient import (
    blockwise_attention,
    linear_attention,
    online_softmax,
)
from attention_lib.generation import next_token_probs
from attention_lib.interop import (
    from_key_padding_mask,
    from_mha_mask,
    from_sdpa_mask,
    swap_attention,
    to_key_padding_mask,
    to_mha_mask,
    to_sdpa_mask,
)
from attention_lib.leaks import (
    LeakReport,
    batch_leak,
    future_leak,
    influence,
    missing,
    order_leak,
    padding_leak,
    step_leak,
)
from attention_lib.masks import (
    block_sparse_mask,
    causal_mask,
    document_mask,
    from_attention_mask,
    padding_mask,
    sliding_window_mask,
)
from attention_lib.measures import (
    alignment_error_rate,
    attention_entropy,
    dot_product_moments,
    hard_alignment,
    head_gates,
    largest_weight,
    score_variance,
    softmax_jacobian,
    softmax_jacobian_norm,
)
from attention_lib.multihead import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from attention_lib.plotting import (
    show_attention,
    show_heads,
    show_links,
)
from attention_lib.positions import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    count_positions,
    sinusoidal_encoding,
)
from attention_lib.scores import (
    AdditiveScore,
    BilinearScore,
    dot_score,
    scaled_dot_score,
)
from attention_lib.seq2seq import (
    AttentionDecoder,
)
from attention_lib.transformer import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LanguageModel,
    SwiGLU,
    TransformerDecoder,
    TransformerEncoder,
)

__version__ = "0.2.0"

__all__ = [
    "AdditiveScore",
    "AttentionDecoder",
    "BilinearScore",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "KVCache",
    "LanguageModel",
    "LeakReport",
    "LearnedPositions",
    "MultiHeadAttention",
    "RotaryPositions",
    "SinusoidalPositions",
    "SwiGLU",
    "TransformerDecoder",
    "TransformerEncoder",
    "alignment_error_rate",
    "attend",
    "attention_entropy",
    "batch_leak",
    "block_sparse_mask",
    "blockwise_attention",
    "causal_mask",
    "count_positions",
    "document_mask",
    "dot_product_moments",
    "dot_score",
    "from_attention_mask",
    "from_key_padding_mask",
    "from_mha_mask",
    "from_sdpa_mask",
    "future_leak",
    "hard_alignment",
    "head_gates",
    "influence",
    "largest_weight",
    "linear_attention",
    "masked_softmax",
    "merge_heads",
    "missing",
    "next_token_probs",
    "online_softmax",
    "order_leak",
    "padding_leak",
    "padding_mask",
    "scaled_dot_product_attention",
    "scaled_dot_score",
    "score_variance",
    "show_attention",
    "show_heads",
    "show_links",
    "sinusoidal_encoding",
    "sliding_window_mask",
    "softmax_jacobian",
    "softmax_jacobian_norm",
    "split_heads",
    "step_leak",
    "swap_attention",
    "to_key_padding_mask",
    "to_mha_mask",
    "to_sdpa_mask",
]
