"""The recurrent translators of the chapters, sized for the toy corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from attention_lib.course.corpus import CHINESE, ENGLISH
from attention_lib.seq2seq import (
    AttentionDecoder,
    Encoder,
    FixedVectorDecoder,
    Seq2Seq,
)

__all__ = [
    "attention_model",
    "fixed_vector_model",
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

    >>> sum(p.numel() for p in fixed_vector_model(8, 4).parameters())
    2081
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
