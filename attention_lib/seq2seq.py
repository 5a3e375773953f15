# Written by tools/export.py from these cells, to be edited there:
# 01_seq2seq.ipynb, 03_scoring.ipynb
"""Encoder and decoder of a translator, and the pair of them.

A translator is an encoder that turns a sentence into a ``Memory``, and a
``Decoder`` that turns the memory into words, one after the other. Later
chapters exchange one or the other and keep everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attention_lib._checks import check_row_lengths
from attention_lib.attention import attend

__all__ = [
    "AttentionDecoder",
    "Decoder",
    "Encoder",
    "FixedVectorDecoder",
    "Memory",
    "Seq2Seq",
    "run_gru",
]


class Memory(NamedTuple):
    """What an encoder hands to a decoder.

    ``states`` has one vector for each source word, zero at the padding;
    ``mask`` is True at the words; ``final`` is one vector for the whole
    sentence, or None from an encoder that makes none.

    Built in section 1.4 (sec-encoder).
    """

    states: Float[Tensor, "B Ts d"]
    mask: Bool[Tensor, "B 1 Ts"]
    final: Float[Tensor, "B c"] | None


class Encoder(nn.Module):
    """Read a sentence with a GRU and keep the state after every word.

    A ``bidirectional`` one reads in both directions, ``hidden_dim`` units
    each, so its states are twice as wide. The last states, ``tanh`` of a
    linear map of them if there are two or ``final_dim`` is given, are the
    vector of the whole sentence. Padding has no influence.

    Source: Cho et al. (2014); Bahdanau et al. (2015), appendix A.2.1.

    >>> encoder = Encoder(10, 4, 6)
    >>> memory = encoder(torch.tensor([[5, 2], [2, 0]]), torch.tensor([2, 1]))
    >>> memory.states.shape, memory.final.shape
    (torch.Size([2, 2, 6]), torch.Size([2, 6]))

    Built in section 1.4 (sec-encoder).
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        hidden_dim: int,
        *,
        bidirectional: bool = False,
        final_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.gru = nn.GRU(
            embedding_dim,
            hidden_dim,
            batch_first=True,
            bidirectional=bidirectional,
        )
        self.state_dim = 2 * hidden_dim if bidirectional else hidden_dim
        self.final_dim = hidden_dim if final_dim is None else final_dim
        self.bridge = None
        if bidirectional or final_dim is not None:
            self.bridge = nn.Linear(self.state_dim, self.final_dim)

    def forward(
        self, source: Int[Tensor, "B Ts"], lengths: Int[Tensor, " B"]
    ) -> Memory:
        """Encode padded word numbers (B, Ts), at least one word in each row.

        Raises TypeError or ValueError for what cannot be ``lengths`` (B,).
        """
        B, Ts = source.shape
        lengths = check_row_lengths(lengths, Ts, "right")[0].cpu()
        mask = torch.arange(Ts, device="cpu") < lengths[:, None, None]
        words = self.embedding(source)
        states = words.new_zeros(B, Ts, self.state_dim)
        final = words.new_zeros(B, self.state_dim)
        if B:  # a GRU refuses to read no sentence
            packed = nn.utils.rnn.pack_padded_sequence(
                words, lengths, batch_first=True, enforce_sorted=False
            )
            read, last = self.gru(packed)
            states, _ = nn.utils.rnn.pad_packed_sequence(
                read, batch_first=True, total_length=Ts
            )
            final = torch.cat([*last], dim=-1)  # of each direction
        if self.bridge is not None:
            final = torch.tanh(self.bridge(final))
        return Memory(states, mask.to(source.device), final)


class Decoder(nn.Module):
    """What training, search and evaluation ask of a decoder.

    A subclass defines ``start`` and ``step``. If it can score all target
    positions at once, it also overrides ``forward``, which must then give
    the same logits.

    Built in section 1.5 (sec-decoder).
    """

    def start(self, memory: Memory) -> Any:
        """Return the state before the first word, memory included."""
        raise NotImplementedError

    def step(
        self, tokens: Int[Tensor, " B"], state: Any
    ) -> tuple[Float[Tensor, "B V"], Any]:
        """Read one word of each sentence; return logits and new state."""
        raise NotImplementedError

    def forward(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt V"]:
        """Score every next word, given the true words before it."""
        state, logits = self.start(memory), []
        for tokens in target_input.unbind(dim=1):
            scores, state = self.step(tokens, state)
            logits.append(scores)
        if not logits:  # a step on zeros tells how many words there are
            return self.step(target_input.sum(1), state)[0][:, None][:, :0]
        return torch.stack(logits, dim=1)

    def reorder(self, state: Any, index: Int[Tensor, " N"]) -> Any:
        """Pick rows ``index`` (N,) of every tensor in a state.

        Tensors have the batch first; a state may nest tuples and None.
        """

        def pick(rows: Tensor | None) -> Tensor | None:
            return None if rows is None else rows.index_select(0, index)

        return tree_map(pick, state)


def run_gru(
    gru: nn.GRU, inputs: Float[Tensor, "B T e"], hidden: Float[Tensor, "B h"]
) -> tuple[Float[Tensor, "B T h"], Float[Tensor, "B h"]]:
    """Read inputs from a hidden state; return all states and the last.

    >>> gru = nn.GRU(3, 5, batch_first=True)
    >>> states, last = run_gru(gru, torch.ones(2, 4, 3), torch.zeros(2, 5))
    >>> torch.equal(states[:, -1], last)
    True

    Built in section 1.5 (sec-decoder).
    """
    if not inputs.shape[1]:  # a GRU refuses to read nothing
        return inputs.new_zeros(len(inputs), 0, gru.hidden_size), hidden
    states, last = gru(inputs, hidden[None])
    return states, last[0]


class FixedVectorDecoder(Decoder):
    """Write a sentence from one vector.

    The vector, of width ``context_dim`` (``hidden_dim`` if omitted), sets
    the first hidden state and stands beside every input word, so the
    decoder never has to carry it along.

    Source: Cho et al. (2014).

    >>> encoder = Encoder(10, 4, 6, final_dim=3)
    >>> decoder = FixedVectorDecoder(9, 4, 6, context_dim=3)
    >>> memory = encoder(torch.tensor([[5, 2]]), torch.tensor([2]))
    >>> decoder(torch.tensor([[1, 5, 4]]), memory).shape
    torch.Size([1, 3, 9])

    Built in section 1.5 (sec-decoder).
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        hidden_dim: int,
        *,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        context_dim = hidden_dim if context_dim is None else context_dim
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.bridge = nn.Linear(context_dim, hidden_dim)
        width = embedding_dim + context_dim
        self.gru = nn.GRU(width, hidden_dim, batch_first=True)
        self.output = nn.Linear(hidden_dim, vocab_size)

    def start(self, memory: Memory) -> tuple[Tensor, Any]:
        """Return the first hidden state (B, h) and the vector (B, c)."""
        return torch.tanh(self.bridge(memory.final)), memory.final

    def step(
        self, tokens: Int[Tensor, " B"], state: Any
    ) -> tuple[Float[Tensor, "B V"], Any]:
        """Read one word of each sentence; return logits and new state."""
        logits, state = self._read(tokens[:, None], state)
        return logits[:, 0], state

    def forward(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt V"]:
        """Score every next word, given the true words before it."""
        return self._read(target_input, self.start(memory))[0]

    def _read(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, context = state
        beside = context[:, None].expand(-1, tokens.shape[1], -1)
        inputs = torch.cat([self.embedding(tokens), beside], dim=-1)
        states, hidden = run_gru(self.gru, inputs, hidden)
        return self.output(states), (hidden, context)


class Seq2Seq(nn.Module):
    """A translator: an encoder and a decoder.

    >>> model = Seq2Seq(Encoder(10, 4, 6), FixedVectorDecoder(9, 4, 6))
    >>> source, lengths = torch.tensor([[5, 2]]), torch.tensor([2])
    >>> model(source, lengths, torch.tensor([[1, 5, 6]])).shape
    torch.Size([1, 3, 9])

    Built in section 1.5 (sec-decoder).
    """

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self,
        source: Int[Tensor, "B Ts"],
        lengths: Int[Tensor, " B"],
        target_input: Int[Tensor, "B Tt"],
    ) -> Float[Tensor, "B Tt V"]:
        """Score every next target word, given the true ones before it."""
        out: Tensor = self.decoder(target_input, self.encoder(source, lengths))
        return out


class AttentionDecoder(Decoder):
    """Write each word with a context made for this word.

    The query is the recurrent state; keys and values are the encoder's
    states, of width ``memory_dim``; ``score`` compares them. The context
    joins at the ``"output"`` (Luong: the new state asks, and the context
    joins after it) or the ``"input"`` (Bahdanau: the state before asks, and
    the GRU reads the context). ``final_dim`` is the width of the encoder's
    final vector; both widths are ``hidden_dim`` if omitted.

    Source: Bahdanau et al. (2015), section 3.1; Luong et al. (2015),
    section 3.1.

    >>> decoder = AttentionDecoder(9, 4, 6, score=lambda q, k: q @ k.mT)
    >>> mask = torch.ones(2, 1, 3, dtype=torch.bool)
    >>> memory = Memory(torch.randn(2, 3, 6), mask, torch.zeros(2, 6))
    >>> decoder(torch.tensor([[1, 5], [1, 4]]), memory).shape
    torch.Size([2, 2, 9])

    Built in section 3.5 (sec-attention-decoder).
    """

    def __init__(
        self,
        vocab_size: int,
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
            raise ValueError(f"context_at is {context_at!r}: output or input")
        memory_dim = hidden_dim if memory_dim is None else memory_dim
        final_dim = hidden_dim if final_dim is None else final_dim
        self.score, self.context_at = score, context_at
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.bridge = nn.Linear(final_dim, hidden_dim)
        beside = memory_dim if context_at == "input" else 0
        self.gru = nn.GRU(embedding_dim + beside, hidden_dim, batch_first=True)
        self.combine = nn.Linear(memory_dim + hidden_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, vocab_size)

    def start(self, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the first state (B, h), and the memory to look back at."""
        return torch.tanh(self.bridge(memory.final)), memory

    def step(
        self, tokens: Int[Tensor, " B"], state: Any
    ) -> tuple[Float[Tensor, "B V"], Any]:
        """Read one word of each sentence; return logits and new state."""
        logits, _, state = self._read(tokens[:, None], state)
        return logits[:, 0], state

    def forward(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt V"]:
        """Score every next word, given the true words before it."""
        return self._read(target_input, self.start(memory))[0]

    def attention_weights(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B *heads Tt Ts"]:
        """Say where the decoder looks for the word after each true one."""
        return self._read(target_input, self.start(memory))[1]

    def _look_back(self, query: Tensor, memory: Memory) -> tuple[Any, Any]:
        states, mask, _ = memory
        return attend(query, states, states, score=self.score, mask=mask)

    def _read(self, tokens: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        (hidden, memory), words = state, self.embedding(tokens)
        if self.context_at == "output" or not tokens.shape[1]:  # Luong
            states, hidden = run_gru(self.gru, words, hidden)
            contexts, weights = self._look_back(states, memory)
        else:  # Bahdanau: one word after the other
            steps = []
            for word in words.split(1, dim=1):
                context, row = self._look_back(hidden[:, None], memory)
                inputs = torch.cat([word, context], dim=-1)
                states, hidden = run_gru(self.gru, inputs, hidden)
                steps.append((states, context, row))
            states, contexts, weights = (
                torch.cat(parts, dim=-2) for parts in zip(*steps, strict=True)
            )
        joined = torch.cat([contexts, states], dim=-1)
        logits = self.output(torch.tanh(self.combine(joined)))
        return logits, weights, (hidden, memory)
