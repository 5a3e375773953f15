# Written by tools/export.py from these cells, to be edited there:
# 01_seq2seq.ipynb, 03_scoring.ipynb
"""Encoder and decoder of a translator, and the pair of them.

A translator is an encoder that turns a sentence into a :class:`Memory`, and a
:class:`Decoder` that turns the memory into words, one after the other. Later
chapters exchange one or the other and keep everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib._checks import (
    check_callable,
    check_indices,
    check_lengths,
    check_sizes,
    check_type,
)
from attention_lib.attention import attend
from attention_lib.course.corpus import CHINESE, ENGLISH

__all__ = [
    "AttentionDecoder",
    "AttentionState",
    "Decoder",
    "Encoder",
    "FixedVectorDecoder",
    "FixedVectorState",
    "Memory",
    "Seq2Seq",
    "attention_model",
    "fixed_vector_model",
    "index_batch",
]


class Memory(NamedTuple):
    """What an encoder hands to a decoder.

    Args:
        states: One vector for each source word, (B, Tk, d); padded places
            hold zeros.
        mask: True at the words, False at the padding, (B, 1, Tk).
        final: One vector for the whole sentence, (B, h), or ``None`` from an
            encoder that makes none.

    Built in :ref:`section 1.4 <sec-encoder>`.
    """

    states: Float[Tensor, "B Tk d"]
    mask: Bool[Tensor, "B 1 Tk"]
    final: Float[Tensor, "B h"] | None


class Encoder(nn.Module):
    """Read a sentence with a GRU and keep the state after every word.

    Padding has no influence: a sentence gives the same states and the same
    final vector whatever stands beside it in the batch.

    Args:
        vocabulary_size: Number of source words.
        embedding_dim: Width of a word vector.
        hidden_dim: Width of the final vector.
        bidirectional: Read in both directions. Then the states are twice as
            wide, and the final vector is ``tanh`` of a linear map of the last
            states of both directions.

    References:
        Cho et al. (2014); Bahdanau et al. (2015), appendix A.2.1, for the
        bidirectional form.

    Example:
        >>> encoder = Encoder(10, 4, 6)
        >>> memory = encoder(torch.tensor([[5, 2], [2, 0]]),
        ...                  torch.tensor([2, 1]))
        >>> memory.states.shape, memory.final.shape
        (torch.Size([2, 2, 6]), torch.Size([2, 6]))

    Built in :ref:`section 1.4 <sec-encoder>`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        *,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(
            vocabulary_size=vocabulary_size,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
        )
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.gru = nn.GRU(
            embedding_dim,
            hidden_dim,
            batch_first=True,
            bidirectional=bidirectional,
        )
        self.bridge = (
            nn.Linear(2 * hidden_dim, hidden_dim) if bidirectional else None
        )
        self.state_dim = hidden_dim * (2 if bidirectional else 1)
        self.final_dim = hidden_dim

    def forward(
        self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]
    ) -> Memory:
        """Encode a padded batch.

        Args:
            source: Word numbers, (B, Tk).
            lengths: Number of words of each sentence, (B,), at least 1.
        """
        size = self.embedding.num_embeddings
        check_indices("source", source, size, "(B, Tk)")
        check_lengths("lengths", lengths, source.shape, least=1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(source),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        packed_states, last = self.gru(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            packed_states, batch_first=True, total_length=source.shape[1]
        )
        if self.bridge is None:
            final = last[0]
        else:
            final = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        positions = torch.arange(source.shape[1], device=source.device)
        mask = (positions < lengths.to(source.device)[:, None])[:, None, :]
        return Memory(states, mask, final)


def index_batch(tree: Any, index: Int[Tensor, " N"]) -> Any:
    """Pick rows of the batch axis in every tensor of a nested structure.

    Args:
        tree: A tensor with the batch first, ``None``, or a (named) tuple,
            list or dict of such.
        index: Row numbers, (N,); rows may repeat.

    Example:
        >>> state = (torch.tensor([[1.0], [2.0]]), None)
        >>> index_batch(state, torch.tensor([1, 1, 0]))[0].tolist()
        [[2.0], [2.0], [1.0]]

    Built in :ref:`section 1.5 <sec-decoder>`.
    """
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        check_indices("index", index, len(tree), "(N,)")
        return tree.index_select(0, index)
    if isinstance(tree, dict):
        return {key: index_batch(leaf, index) for key, leaf in tree.items()}
    check_type("tree", tree, (tuple, list), "made of tensors")
    leaves = [index_batch(leaf, index) for leaf in tree]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*leaves)
    return type(tree)(leaves)


class Decoder(nn.Module):
    """What training, decoding and evaluation ask of a decoder.

    A subclass defines :meth:`start` and :meth:`step`. If it can process all
    target positions at once, it also overrides :meth:`forward`, which must
    then give the same logits.

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    def start(self, memory: Memory) -> Any:
        """Make the state before the first word, memory included."""
        raise NotImplementedError

    def step(
        self, tokens: Int[Tensor, " B"], state: Any
    ) -> tuple[Float[Tensor, "B words"], Any]:
        """Read one word of each sentence and score the next.

        Args:
            tokens: The words just written, (B,); ``BOS`` at first.
            state: What :meth:`start` or the last call returned.

        Returns:
            The logits of the next word, (B, words), and the new state.
        """
        raise NotImplementedError

    def forward(
        self, target_input: Int[Tensor, "B Tq"], memory: Memory
    ) -> Float[Tensor, "B Tq words"]:
        """Score every next word, given the true words before it."""
        state = self.start(memory)
        logits = []
        for tokens in target_input.unbind(dim=1):
            scores, state = self.step(tokens, state)
            logits.append(scores)
        return torch.stack(logits, dim=1)

    def reorder(self, state: Any, index: Int[Tensor, " N"]) -> Any:
        """Pick rows of the batch from a state, for beam search."""
        return index_batch(state, index)


class FixedVectorState(NamedTuple):
    """State of a :class:`FixedVectorDecoder`.

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    hidden: Float[Tensor, "B h"]
    context: Float[Tensor, "B c"]


class FixedVectorDecoder(Decoder):
    """Write a sentence from one vector.

    The vector sets the first hidden state and stands beside every input word,
    so the decoder never has to carry it along.

    Args:
        vocabulary_size: Number of target words.
        embedding_dim: Width of a word vector.
        hidden_dim: Width of the hidden state.
        context_dim: Width of the encoder's final vector; ``hidden_dim`` if
            not given.

    References:
        Cho et al. (2014), "Learning phrase representations using RNN
        encoder-decoder for statistical machine translation".

    Example:
        >>> decoder = FixedVectorDecoder(9, 4, 6)
        >>> memory = Memory(torch.zeros(2, 3, 6),
        ...                 torch.ones(2, 1, 3, dtype=torch.bool),
        ...                 torch.zeros(2, 6))
        >>> decoder(torch.tensor([[1, 5], [1, 4]]), memory).shape
        torch.Size([2, 2, 9])

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        context_dim = hidden_dim if context_dim is None else context_dim
        check_sizes(
            vocabulary_size=vocabulary_size,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
            context_dim=context_dim,
        )
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.bridge = nn.Linear(context_dim, hidden_dim)
        self.gru = nn.GRU(
            embedding_dim + context_dim, hidden_dim, batch_first=True
        )
        self.output = nn.Linear(hidden_dim, vocabulary_size)

    def start(self, memory: Memory) -> FixedVectorState:
        """Make the first hidden state from the sentence vector."""
        check_type("memory", memory, Memory, "a Memory")
        if memory.final is None:
            raise ValueError("memory.final is None: a sentence vector needed")
        hidden = torch.tanh(self.bridge(memory.final))
        return FixedVectorState(hidden, memory.final)

    def step(
        self, tokens: Int[Tensor, " B"], state: FixedVectorState
    ) -> tuple[Float[Tensor, "B words"], FixedVectorState]:
        """Read one word of each sentence and score the next."""
        size = self.embedding.num_embeddings
        check_indices("tokens", tokens, size, "(B,)")
        logits, hidden = self._run(tokens[:, None], state)
        return logits[:, 0], FixedVectorState(hidden, state.context)

    def forward(
        self, target_input: Int[Tensor, "B Tq"], memory: Memory
    ) -> Float[Tensor, "B Tq words"]:
        """Score every next word, given the true words before it."""
        size = self.embedding.num_embeddings
        check_indices("target_input", target_input, size, "(B, Tq)")
        return self._run(target_input, self.start(memory))[0]

    def _run(
        self, tokens: Tensor, state: FixedVectorState
    ) -> tuple[Tensor, Tensor]:
        context = state.context[:, None].expand(-1, tokens.shape[1], -1)
        inputs = torch.cat([self.embedding(tokens), context], dim=-1)
        outputs, hidden = self.gru(inputs, state.hidden[None].contiguous())
        return self.output(outputs), hidden[0]


class Seq2Seq(nn.Module):
    """A translator: an encoder and a decoder.

    Args:
        encoder: Maps (source, lengths) to a :class:`Memory`.
        decoder: A :class:`Decoder`.

    Example:
        >>> model = Seq2Seq(Encoder(10, 4, 6), FixedVectorDecoder(9, 4, 6))
        >>> model(torch.tensor([[5, 2]]), torch.tensor([2]),
        ...       torch.tensor([[1, 5, 6]])).shape
        torch.Size([1, 3, 9])

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
        super().__init__()
        check_callable("encoder", encoder)
        check_type("decoder", decoder, Decoder, "a Decoder")
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self,
        source: Int[Tensor, "B Tk"],
        lengths: Int[Tensor, " B"],
        target_input: Int[Tensor, "B Tq"],
    ) -> Float[Tensor, "B Tq words"]:
        """Score every next target word under teacher forcing."""
        logits: Tensor = self.decoder(
            target_input, self.encoder(source, lengths)
        )
        return logits


def fixed_vector_model(
    hidden_dim: int = 64, embedding_dim: int = 32
) -> Seq2Seq:
    """Build the translator of chapter 1 for the toy corpus.

    Example:
        >>> sum(p.numel() for p in fixed_vector_model(8, 4).parameters()) > 0
        True

    Built in :ref:`section 1.5 <sec-decoder>`.
    """
    return Seq2Seq(
        Encoder(len(ENGLISH), embedding_dim, hidden_dim),
        FixedVectorDecoder(len(CHINESE), embedding_dim, hidden_dim),
    )


class AttentionState(NamedTuple):
    """State of an :class:`~attention_lib.seq2seq.AttentionDecoder`.

    Args:
        hidden: The recurrent state, (B, h).
        memory: What the encoder wrote; the same at every step.

    Example:
        >>> from attention_lib.scores import dot_score
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
        >>> from attention_lib.scores import dot_score
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
        >>> from attention_lib.scores import dot_score
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
