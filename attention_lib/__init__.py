"""Attention mechanisms, exactly as built in the chapters of the course."""

from attention_lib.attention import (
    attend,
    masked_softmax,
    scaled_dot_product_attention,
)
from attention_lib.cache import KVCache
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
    order_leak,
    padding_leak,
)
from attention_lib.masks import (
    block_sparse_mask,
    causal_mask,
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
from attention_lib.scores import (
    AdditiveScore,
    BilinearScore,
    dot_score,
    scaled_dot_score,
)

__version__ = "0.2.0"
