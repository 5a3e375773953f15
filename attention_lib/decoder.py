# Written by tools/export.py from 03_scoring.ipynb: edit there.
"""A decoder that looks back at the source, and a measure of where it looks.

The score is an argument: :func:`~attention_lib.scoring.dot_score`, a
:class:`~attention_lib.scoring.BilinearScore`, an
:class:`~attention_lib.scoring.AdditiveScore` or any callable of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_lib._checks import (
    check_callable,
    check_indices,
    check_items,
    check_sizes,
    check_tensor,
    check_type,
)
from attention_lib.attention import attend
from attention_lib.corpus import CHINESE, ENGLISH, Pair, make_batch
from attention_lib.seq2seq import Decoder, Encoder, Memory, Seq2Seq

__all__ = [
    "AttentionDecoder",
    "AttentionState",
    "alignment_error_rate",
    "attention_model",
    "evaluate_alignment",
    "hard_alignment",
]


class AttentionState(NamedTuple):
    """State of an :class:`~attention_lib.decoder.AttentionDecoder`.

    Args:
        hidden: The recurrent state, (B, h).
        memory: What the encoder wrote; the same at every step.

    Example:
        >>> from attention_lib.scoring import dot_score
        >>> model = attention_model(dot_score, hidden_dim=8)
        >>> memory = model.encoder(torch.tensor([[5, 6, 2]]),
        ...                        torch.tensor([3]))
        >>> state = model.decoder.start(memory)
        >>> isinstance(state, AttentionState), state.hidden.shape
        (True, torch.Size([1, 8]))

    Built in :ref:`section 3.5 <sec-attention-decoder>`.
    """

    hidden: Float[Tensor, "B h"]
    memory: Memory


class AttentionDecoder(Decoder):
    """Write each word with a context made for this word.

    The query is the recurrent state; keys and values are the encoder's
    states, padding masked out. The context joins in one of two places:

    - ``"output"`` (Luong): the GRU reads the last word, its *new* state is
      the query, and the context joins after it. Given the true words, all
      target positions are computed at once.
    - ``"input"`` (Bahdanau): the *previous* state is the query, and the GRU
      reads the last word and the context. One step follows the other.

    In both, the logits are a linear map of ``tanh`` of a linear map of
    context and new state.

    Args:
        vocabulary_size: Number of target words.
        embedding_dim: Width of a word vector.
        hidden_dim: Width of the state, and so of the queries.
        score: Compares queries ``(B, Tq, hidden_dim)`` with keys
            ``(B, Tk, memory_dim)``; if a module, it is trained too.
        memory_dim: Width of the encoder's states; ``hidden_dim`` if not
            given.
        final_dim: Width of the encoder's final vector, which sets the first
            state through a linear map and ``tanh``; ``hidden_dim`` if not
            given.
        context_at: ``"output"`` or ``"input"``.

    Raises:
        ValueError: If ``context_at`` is neither.

    References:
        Bahdanau, Cho and Bengio (2015), section 3.1; Luong, Pham and
        Manning (2015), section 3.1, equations 5 and 6.

    Example:
        >>> from attention_lib.scoring import dot_score
        >>> decoder = AttentionDecoder(9, 4, 6, score=dot_score)
        >>> memory = Memory(torch.randn(2, 3, 6),
        ...                 torch.ones(2, 1, 3, dtype=torch.bool),
        ...                 torch.zeros(2, 6))
        >>> words = torch.tensor([[1, 5], [1, 4]])
        >>> decoder(words, memory).shape
        torch.Size([2, 2, 9])
        >>> decoder.attention_weights(words, memory).shape
        torch.Size([2, 2, 3])

    Built in :ref:`section 3.5 <sec-attention-decoder>`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        *,
        score: Callable[[Tensor, Tensor], Tensor],
        memory_dim: int | None = None,
        final_dim: int | None = None,
        context_at: Literal["output", "input"] = "output",
    ) -> None:
        super().__init__()
        if context_at not in ("output", "input"):
            raise ValueError(
                'context_at must be "output" (Luong) or "input" (Bahdanau), '
                f"got {context_at!r}"
            )
        memory_dim = hidden_dim if memory_dim is None else memory_dim
        final_dim = hidden_dim if final_dim is None else final_dim
        check_sizes(
            vocabulary_size=vocabulary_size,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
            memory_dim=memory_dim,
            final_dim=final_dim,
        )
        check_callable("score", score)
        self.score = score
        self.context_at = context_at
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.bridge = nn.Linear(final_dim, hidden_dim)
        input_dim = embedding_dim
        if context_at == "input":
            input_dim += memory_dim
        self.gru = nn.GRU(input_dim, hidden_dim, batch_first=True)
        self.combine = nn.Linear(memory_dim + hidden_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, vocabulary_size)

    def start(self, memory: Memory) -> AttentionState:
        """Make the first state from the encoder's final vector."""
        check_type("memory", memory, Memory, "a Memory")
        if memory.final is None:
            raise ValueError(
                "memory.final is None: the first state is made from a "
                "sentence vector, and this encoder gives none"
            )
        if len(memory.final) != len(memory.states):
            raise ValueError(
                f"memory.final holds {len(memory.final)} sentences, "
                f"memory.states {len(memory.states)}"
            )
        return AttentionState(torch.tanh(self.bridge(memory.final)), memory)

    def step(
        self, tokens: Int[Tensor, " B"], state: AttentionState
    ) -> tuple[Float[Tensor, "B V"], AttentionState]:
        """Read one word of each sentence and score the next."""
        size = self.embedding.num_embeddings
        check_indices("tokens", tokens, size, "(B,)")
        logits, _, state = self._run(tokens[:, None], state)
        return logits[:, 0], state

    def forward(
        self, target_input: Int[Tensor, "B Tq"], memory: Memory
    ) -> Float[Tensor, "B Tq V"]:
        """Score every next word, given the true words before it."""
        return self._run_all(target_input, memory)[0]

    def attention_weights(
        self, target_input: Int[Tensor, "B Tq"], memory: Memory
    ) -> Float[Tensor, "B Tq Tk"]:
        """Say where the decoder looks for every next word.

        Row ``t`` belongs to the word that follows ``target_input[:, t]``,
        which is word ``t`` of ``target_output``.
        """
        return self._run_all(target_input, memory)[1]

    def _run_all(
        self, target_input: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor, AttentionState]:
        """Read the true words from the start."""
        size = self.embedding.num_embeddings
        check_indices("target_input", target_input, size, "(B, Tq)")
        return self._run(target_input, self.start(memory))

    def _look_back(
        self, query: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """Return contexts and weights of some queries."""
        states = memory.states
        return attend(
            query, states, states, score=self.score, mask=memory.mask
        )

    def _run(
        self, tokens: Tensor, state: AttentionState
    ) -> tuple[Tensor, Tensor, AttentionState]:
        """Read several words; return logits, weights and the last state."""
        hidden, memory = state
        if len(tokens) != len(hidden):
            raise ValueError(
                f"there are words of {len(tokens)} sentences, and the memory "
                f"holds {len(hidden)}"
            )
        words = self.embedding(tokens)
        if self.context_at == "output":
            outputs, last = self.gru(words, hidden[None].contiguous())
            contexts, weights = self._look_back(outputs, memory)
            hidden = last[0]
        else:
            steps = []
            for word in words.split(1, dim=1):
                context, row = self._look_back(hidden[:, None], memory)
                output, last = self.gru(
                    torch.cat([word, context], dim=-1),
                    hidden[None].contiguous(),
                )
                hidden = last[0]
                steps.append((output, context, row))
            outputs, contexts, weights = (
                torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)
            )
        joined = torch.cat([contexts, outputs], dim=-1)
        logits = self.output(torch.tanh(self.combine(joined)))
        return logits, weights, AttentionState(hidden, memory)


def attention_model(
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    hidden_dim: int = 64,
    embedding_dim: int = 32,
    context_at: Literal["output", "input"] = "output",
) -> Seq2Seq:
    """Build a translator with attention for the toy corpus.

    The encoder reads in both directions with ``hidden_dim // 2`` units each,
    so that queries and keys both have the width ``hidden_dim``.

    Args:
        score: Compares queries and keys of width ``hidden_dim``.
        hidden_dim: Width of the decoder's state and of the encoder's states;
            an even number.
        embedding_dim: Width of a word vector.
        context_at: Where the context joins: ``"output"`` or ``"input"``.

    Raises:
        ValueError: If ``hidden_dim`` is odd.

    Example:
        >>> from attention_lib.scoring import dot_score
        >>> model = attention_model(dot_score, hidden_dim=8)
        >>> model.encoder.state_dim
        8

    Built in :ref:`section 3.5 <sec-attention-decoder>`.
    """
    check_sizes(hidden_dim=hidden_dim)
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


def hard_alignment(weights: Float[Tensor, "Tq Tk"]) -> set[tuple[int, int]]:
    """Link every target word to the source word with the largest weight.

    Args:
        weights: One sentence's weights, (Tq, Tk): a row per target word.

    Returns:
        One link (target index, source index) for each row.

    References:
        Luong, Pham and Manning (2015), section 5.4.

    Example:
        >>> sorted(hard_alignment(torch.tensor([[0.2, 0.8], [0.6, 0.4]])))
        [(0, 1), (1, 0)]

    Built in :ref:`section 3.7 <sec-alignment>`.
    """
    check_tensor("weights", weights, "floating-point")
    if weights.dim() != 2:
        raise ValueError(
            "weights must be those of one sentence, (Tq, Tk), got shape "
            f"{tuple(weights.shape)}"
        )
    if weights.shape[0] and not weights.shape[1]:
        raise ValueError("weights have no source word to link to")
    return set(enumerate(weights.argmax(dim=-1).tolist()))


def alignment_error_rate(
    predicted: Sequence[set[tuple[int, int]]],
    sure: Sequence[set[tuple[int, int]]],
    possible: Sequence[set[tuple[int, int]]] | None = None,
) -> float:
    """Compare predicted links with true ones: 0 is best, 1 is worst.

    ``1 - (|A & S| + |A & P|) / (|A| + |S|)`` with the predicted links A, the
    sure links S and the possible links P, each counted over all sentences. A
    sure link is possible as well. If all true links are sure, this is one
    minus the F1 score.

    Args:
        predicted: For each sentence its links (target index, source index).
        sure: For each sentence the links that must be found.
        possible: For each sentence the links that may be found; ``sure`` if
            not given.

    Returns:
        The rate, between 0 and 1; 0 if there is no link at all.

    Raises:
        ValueError: If the arguments are of different length.

    References:
        Och and Ney (2003), *A Systematic Comparison of Various Statistical
        Alignment Models*.

    Example:
        >>> alignment_error_rate([{(0, 1), (1, 0)}], [{(0, 1), (1, 1)}])
        0.5

    Built in :ref:`section 3.7 <sec-alignment>`.
    """
    possible = sure if possible is None else possible
    predicted = check_items("predicted", predicted, Set, "sets of links")
    sure = check_items("sure", sure, Set, "sets of links")
    possible = check_items("possible", possible, Set, "sets of links")
    if not len(predicted) == len(sure) == len(possible):
        raise ValueError(
            "predicted, sure and possible must be of one length, got "
            f"{len(predicted)}, {len(sure)} and {len(possible)}"
        )
    right = total = 0
    for links, must, may in zip(predicted, sure, possible, strict=True):
        right += len(links & must) + len(links & (must | may))
        total += len(links) + len(must)
    return 1 - right / total if total else 0.0


@torch.no_grad()
def evaluate_alignment(
    model: Seq2Seq, pairs: Sequence[Pair], *, batch_size: int = 256
) -> float:
    """Measure how far the weights are from the grammar's own alignment.

    The decoder reads the true translation. Each Chinese word is linked to
    the source word with the largest weight; the end of the sentence counts
    as a source word, one that is never right. The links are compared with
    the corpus's, all of which are sure.

    Args:
        model: A translator whose decoder has ``attention_weights``.
        pairs: Sentence pairs with their alignment.
        batch_size: Sentences at a time; it has no influence on the result.

    Returns:
        The alignment error rate.

    Example:
        >>> from attention_lib.corpus import sample_pairs
        >>> from attention_lib.scoring import dot_score
        >>> model = attention_model(dot_score, hidden_dim=8)
        >>> 0.0 <= evaluate_alignment(model, sample_pairs(4)) <= 1.0
        True

    Built in :ref:`section 3.7 <sec-alignment>`.
    """
    check_sizes(batch_size=batch_size)
    pairs = check_items("pairs", pairs, Pair, "pairs")
    check_type("model", model, Seq2Seq, "a Seq2Seq")
    if not hasattr(model.decoder, "attention_weights"):
        raise TypeError("model must have a decoder with attention_weights")
    model.eval()
    decoder: Any = model.decoder
    predicted, sure = [], []
    for start in range(0, len(pairs), batch_size):
        part = pairs[start : start + batch_size]
        batch = make_batch(part)
        memory = model.encoder(batch.source, batch.source_lengths)
        weights = decoder.attention_weights(batch.target_input, memory)
        for pair, rows in zip(part, weights, strict=True):
            predicted.append(hard_alignment(rows[: len(pair.target)]))
            sure.append(set(pair.alignment))
    return alignment_error_rate(predicted, sure)
