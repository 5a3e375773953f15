"""The translators of the chapters, sized for the toy corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from attention_lib.course.corpus import CHINESE, ENGLISH
from attention_lib.seq2seq import (
    AttentionDecoder,
    Encoder,
    FixedVectorDecoder,
    Seq2Seq,
)
from attention_lib.transformer import TransformerDecoder, TransformerEncoder

__all__ = [
    "attention_model",
    "fixed_vector_model",
    "transformer_model",
]


def fixed_vector_model(
    hidden_dim: int = 64,
    embedding_dim: int = 32,
    *,
    context_dim: int | None = None,
    bidirectional: bool = False,
) -> Seq2Seq:
    """Build the translator that writes from one vector.

    ``context_dim`` is the width of that vector alone: encoder and decoder
    keep states of ``hidden_dim`` numbers. If it is omitted, the vector is
    the encoder's last state. A ``bidirectional`` encoder has half of the
    units for each direction, as in ``attention_model``.

    >>> fixed_vector_model(64, context_dim=16).encoder.final_dim
    16
    """
    units = hidden_dim // 2 if bidirectional else hidden_dim
    if bidirectional and context_dim is None:
        context_dim = hidden_dim
    encoder = Encoder(
        len(ENGLISH),
        embedding_dim,
        units,
        bidirectional=bidirectional,
        final_dim=context_dim,
    )
    decoder = FixedVectorDecoder(
        len(CHINESE), embedding_dim, hidden_dim, context_dim=context_dim
    )
    return Seq2Seq(encoder, decoder)


def attention_model(
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    hidden_dim: int = 64,
    embedding_dim: int = 32,
    context_at: Literal["output", "input"] = "output",
) -> Seq2Seq:
    """Build the translator that looks back.

    The encoder reads in both directions with ``hidden_dim // 2`` units each,
    so that queries and keys, which ``score`` compares, both have the width
    ``hidden_dim``. Raises ValueError if that is odd.

    >>> from attention_lib.scores import dot_score
    >>> attention_model(dot_score, hidden_dim=8).encoder.state_dim
    8
    """
    if hidden_dim % 2:
        raise ValueError(
            "hidden_dim must be even, half for each direction of the "
            f"encoder, got {hidden_dim}"
        )
    encoder = Encoder(
        len(ENGLISH), embedding_dim, hidden_dim // 2, bidirectional=True
    )
    decoder = AttentionDecoder(
        len(CHINESE),
        embedding_dim,
        hidden_dim,
        score=score,
        memory_dim=encoder.state_dim,
        final_dim=encoder.final_dim,
        context_at=context_at,
    )
    return Seq2Seq(encoder, decoder)


def transformer_model(
    d_model: int = 64, num_heads: int = 4, num_layers: int = 2, **options: Any
) -> Seq2Seq:
    """Build the translator that is a Transformer.

    ``num_layers`` counts the blocks of either half. ``options`` are those of
    ``LanguageModel``; if omitted they are those of 2017, sinusoidal
    positions, layer norms, ReLU and biases, but for ``pre_norm``.

    Source: Vaswani et al. (2017), section 3.

    >>> model = transformer_model(8, 2, 1, pre_norm=False)
    >>> model.decoder.blocks[0].feed_forward.output_proj.in_features
    32
    """
    options = {
        "positions": "sinusoidal",
        "norm": "layer",
        "activation": "relu",
        "bias": True,
        "max_length": 512,
        **options,
    }
    sizes = (d_model, num_heads, num_layers)
    return Seq2Seq(
        TransformerEncoder(len(ENGLISH), *sizes, **options),
        TransformerDecoder(len(CHINESE), *sizes, **options),
    )
