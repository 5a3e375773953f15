# Written by tools/export.py from these cells, to be edited there:
# 07_transformer.ipynb
"""The Transformer: blocks, encoder, decoder, language model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attention_lib import _exchange, _models, generation
from attention_lib._checks import check_sizes
from attention_lib.masks import padding_mask
from attention_lib.multihead import MultiHeadAttention
from attention_lib.positions import count_positions
from attention_lib.seq2seq import Decoder, Memory

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "LanguageModel",
    "SwiGLU",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerState",
]


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between, at each position alone.

    ``activation`` is any function of one tensor: ReLU if omitted.

    Source: Vaswani et al. (2017), section 3.3.

    >>> FeedForward(4, 16)(torch.randn(2, 3, 4)).shape
    torch.Size([2, 3, 4])

    Built in section 7.4 (sec-block).
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Callable[[Tensor], Tensor] = F.relu,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.input_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.output_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*batch T d_model"]
    ) -> Float[Tensor, "*batch T d_model"]:
        """Apply the same two maps to every position."""
        hidden = self.activation(self.input_proj(x))
        output: Tensor = self.output_proj(self.dropout(hidden))
        return output


class SwiGLU(nn.Module):
    """A feed-forward layer in which a gate stands before each hidden unit.

    Source: Shazeer (2020), "GLU variants improve Transformer", equation 6.

    >>> SwiGLU(4, 16)(torch.randn(2, 3, 4)).shape
    torch.Size([2, 3, 4])

    Built in section 7.4 (sec-block).
    """

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.input_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.output_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(
        self, x: Float[Tensor, "*batch T d_model"]
    ) -> Float[Tensor, "*batch T d_model"]:
        """Multiply each hidden unit by its gate, position by position."""
        gates = F.silu(self.gate_proj(x))
        output: Tensor = self.output_proj(gates * self.input_proj(x))
        return output


_Positions = Literal["rotary", "sinusoidal", "learned"] | None
_Weights = Float[Tensor, "B H _ _"] | None


class EncoderBlock(nn.Module):
    """Self-attention, then a feed-forward layer, each beside a residual.

    The parts are modules; ``attention`` is called like
    ``MultiHeadAttention``. With ``pre_norm`` the other two read normalised
    states, without it each sum is normalised.

    Source: Vaswani et al. (2017), section 3.1; Xiong et al. (2020).

    >>> parts = MultiHeadAttention(8, 2), FeedForward(8, 32)
    >>> block = EncoderBlock(*parts, nn.LayerNorm(8), nn.LayerNorm(8))
    >>> states, weights = block(torch.randn(3, 5, 8), need_weights=True)
    >>> states.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]))

    Built in section 7.4 (sec-block).
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        norm1: nn.Module,
        norm2: nn.Module,
        *,
        pre_norm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm1, self.norm2 = norm1, norm2
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(
        self, x: Float[Tensor, "B T d_model"], **options: Any
    ) -> tuple[Float[Tensor, "B T d_model"], _Weights]:
        """Let every position look at the others, then think by itself.

        ``options`` are those of the attention: ``mask``, ``bias``,
        ``is_causal``, ``positions``, ``need_weights``, ``cache``. Returns
        the new states, and the weights or None.
        """
        if self.pre_norm:
            change, weights = self.attention(self.norm1(x), **options)
            x = x + self.dropout(change)
            x = x + self.dropout(self.feed_forward(self.norm2(x)))
        else:
            change, weights = self.attention(x, **options)
            x = self.norm1(x + self.dropout(change))
            x = self.norm2(x + self.dropout(self.feed_forward(x)))
        return x, weights

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoderLayer) -> EncoderBlock:
        """Copy a layer of PyTorch: same outputs and gradients."""
        return _exchange.block_from_torch(cls, module)

    def to_torch(self, *, batch_first: bool = True) -> nn.Module:
        """Copy into a layer of PyTorch, whose masks mean the opposite."""
        return _exchange.block_to_torch(self, batch_first)


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to a memory, feed-forward layer.

    The parts are modules, like those of ``EncoderBlock``. The memory is not
    normalised here: a pre-norm encoder ends in a norm of its own.

    Source: Vaswani et al. (2017), section 3.1; Xiong et al. (2020).

    >>> own, other = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)
    >>> norms = [nn.LayerNorm(8) for _ in range(3)]
    >>> block = DecoderBlock(own, other, FeedForward(8, 32), *norms)
    >>> x, memory = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    >>> x, weights, cross_weights = block(x, memory, need_weights=True)
    >>> weights.shape, cross_weights.shape
    (torch.Size([3, 2, 4, 4]), torch.Size([3, 2, 4, 6]))

    Built in section 7.4 (sec-block).
    """

    def __init__(
        self,
        self_attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
        norm1: nn.Module,
        norm2: nn.Module,
        norm3: nn.Module,
        *,
        pre_norm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.norm1, self.norm2, self.norm3 = norm1, norm2, norm3
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(
        self,
        x: Float[Tensor, "B Tt d_model"],
        memory: Float[Tensor, "B Ts d_memory"],
        *,
        memory_mask: Bool[Tensor, "..."] | None = None,
        memory_cache: Any = None,
        need_weights: bool = False,
        **options: Any,
    ) -> tuple[Float[Tensor, "B Tt d_model"], _Weights, _Weights]:
        """Look at the words so far, then at the memory, then think.

        ``options`` are those of the self-attention: ``mask``, ``bias``,
        ``is_causal`` (here True if omitted), ``positions``, ``cache``. A
        ``memory_cache`` is filled once: then pass ``memory[:, :0]``. Returns
        the new states, and the weights of both attentions or None twice.
        """
        if memory_cache is not None or "cache" in options:
            _models.check_memory(self, x, memory, memory_mask, memory_cache)
        own = {"is_causal": True, "need_weights": need_weights, **options}
        cross = {"mask": memory_mask, "need_weights": need_weights}
        cross["cache"] = memory_cache
        if self.pre_norm:
            change, weights = self.self_attention(self.norm1(x), **own)
            x = x + self.dropout(change)
            change, seen = self.cross_attention(self.norm2(x), memory, **cross)
            x = x + self.dropout(change)
            x = x + self.dropout(self.feed_forward(self.norm3(x)))
        else:
            change, weights = self.self_attention(x, **own)
            x = self.norm1(x + self.dropout(change))
            change, seen = self.cross_attention(x, memory, **cross)
            x = self.norm2(x + self.dropout(change))
            x = self.norm3(x + self.dropout(self.feed_forward(x)))
        return x, weights, seen

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoderLayer) -> DecoderBlock:
        """Copy a layer of PyTorch, which is causal only if given a mask."""
        return _exchange.block_from_torch(cls, module)

    def to_torch(self, *, batch_first: bool = True) -> nn.Module:
        """Copy into a layer of PyTorch, whose masks mean the opposite."""
        return _exchange.block_to_torch(self, batch_first)


class _Stack(nn.Module):
    """Embedding, blocks, last norm and output: what all models have."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        *,
        num_kv_heads: int | None = None,
        d_head: int | None = None,
        d_ff: int | None = None,
        positions: _Positions = "rotary",
        norm: Literal["rms", "layer"] = "rms",
        activation: Literal["swiglu", "gelu", "relu"] = "swiglu",
        tie_embeddings: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
        pre_norm: bool = True,
        max_length: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads, num_layers=num_layers)
        _models.check_choice("norm", norm, "rms", "layer")
        kinds = ("swiglu", "gelu", "relu")
        _models.check_choice("activation", activation, *kinds)
        common: dict[str, Any] = {"bias": bias, "dropout": dropout}
        heads = {"num_kv_heads": num_kv_heads, "d_head": d_head, **common}
        attention = partial(MultiHeadAttention, d_model, num_heads, **heads)
        if d_ff is None:
            d_ff = 8 * d_model // 3 if activation == "swiglu" else 4 * d_model
        feed_forward: Any = partial(SwiGLU, d_model, d_ff, bias=bias)
        if activation != "swiglu":
            common["activation"] = getattr(F, activation)
            feed_forward = partial(FeedForward, d_model, d_ff, **common)
        make_norm: Any = partial(nn.RMSNorm, d_model, norm_eps)
        if norm == "layer":
            make_norm = partial(nn.LayerNorm, d_model, norm_eps, bias=bias)
        options = {"pre_norm": pre_norm, "dropout": dropout}

        self.embedding = nn.Embedding(vocab_size, d_model)
        width = d_model // num_heads if d_head is None else d_head
        turns = {"base": rotary_base, "interleaved": interleaved}
        self.positions, self.rotary = _models.make_positions(
            positions, (d_model, width), max_length, **turns
        )
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            self._block(attention, make_norm, feed_forward, **options)
            for _ in range(num_layers)
        )
        self.norm = make_norm() if pre_norm else nn.Identity()
        self.output = self._output(d_model, vocab_size, bias)
        if tie_embeddings:  # logits of variance 1
            nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
            self.output.weight = self.embedding.weight

    def _block(
        self, attention: Any, norm: Any, feed_forward: Any, **options: Any
    ) -> nn.Module:
        parts = attention(rotary=self.rotary), feed_forward()
        return EncoderBlock(*parts, norm(), norm(), **options)

    def _output(self, d_model: int, vocab_size: int, bias: bool) -> nn.Module:
        return nn.Linear(d_model, vocab_size, bias=bias)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Look the tokens up and mark where they stand."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = self.positions(x, positions)
        dropped: Tensor = self.dropout(x)
        return dropped


class TransformerEncoder(_Stack):
    """Read a sentence with self-attention, all words at once.

    Takes the place of the recurrent ``Encoder``. The arguments are those of
    ``LanguageModel``.

    Source: Vaswani et al. (2017), section 3.1.

    >>> encoder = TransformerEncoder(10, 8, num_heads=2, num_layers=1)
    >>> memory = encoder(torch.tensor([[5, 4], [6, 0]]), torch.tensor([2, 1]))
    >>> memory.states.shape, memory.mask.shape, memory.final
    (torch.Size([2, 2, 8]), torch.Size([2, 1, 2]), None)

    Built in section 7.6 (sec-stacks).
    """

    def _output(self, d_model: int, vocab_size: int, bias: bool) -> nn.Module:
        return nn.Identity()

    def forward(
        self, source: Int[Tensor, "B Ts"], lengths: Int[Tensor, " B"]
    ) -> Memory:
        """Encode a padded batch; the states of pads are 0."""
        mask = padding_mask(lengths.to(source.device), source.shape[1])
        x = self.embed(source)
        for block in self.blocks:
            x, _ = block(x, mask=mask)
        return Memory(self.norm(x).masked_fill(~mask.mT, 0.0), mask, None)


class TransformerState(NamedTuple):
    """State of a ``TransformerDecoder`` between two words.

    ``memory`` is what the encoder made; ``words`` and ``sources`` hold, for
    each block, the keys and values of the words and of the memory.

    Built in section 7.6 (sec-stacks).
    """

    memory: Memory
    words: tuple[tuple[Tensor, ...], ...]
    sources: tuple[tuple[Tensor, ...], ...]


class TransformerDecoder(_Stack, Decoder):
    """Write a sentence with causal self-attention and cross-attention.

    In training ``forward`` scores all words at once; translating goes word by
    word, and ``step`` keeps the keys and values of earlier words. Both give
    the same logits. The arguments are those of ``LanguageModel``.

    Source: Vaswani et al. (2017), section 3.1.

    >>> decoder = TransformerDecoder(9, 8, num_heads=2, num_layers=1)
    >>> memory = Memory(torch.zeros(2, 3, 8), padding_mask([3, 2]), None)
    >>> decoder(torch.tensor([[1, 5], [1, 4]]), memory).shape
    torch.Size([2, 2, 9])

    Built in section 7.6 (sec-stacks).
    """

    def _block(
        self, attention: Any, norm: Any, feed_forward: Any, **options: Any
    ) -> nn.Module:
        parts = attention(rotary=self.rotary), attention(), feed_forward()
        return DecoderBlock(*parts, norm(), norm(), norm(), **options)

    def _read(
        self, tokens: Tensor, memory: Memory, need_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """Return the logits and, if asked for, the cross-weights."""
        options = {"memory_mask": memory.mask, "need_weights": need_weights}
        x, seen = self.embed(tokens), []
        for block in self.blocks:
            x, _, weights = block(x, memory.states, **options)
            seen.append(weights)
        return self.output(self.norm(x)), seen

    def forward(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt V"]:
        """Score every next word, given the true words before it."""
        return self._read(target_input, memory)[0]

    def cross_weights(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "layers B H Tt Ts"]:
        """Return where each block and head looks in the source.

        Row ``t`` belongs to the step that *reads* target word ``t`` and
        predicts the next one.
        """
        return torch.stack(self._read(target_input, memory, True)[1])

    def attention_weights(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt Ts"]:
        """Return the mean of ``cross_weights`` over blocks and heads."""
        return self.cross_weights(target_input, memory).mean((0, 2))

    def start(self, memory: Memory) -> TransformerState:
        """Begin with the memory and without a word."""
        nothing = ((),) * len(self.blocks)
        return TransformerState(memory, nothing, nothing)

    def step(
        self, tokens: Int[Tensor, " B"], state: TransformerState
    ) -> tuple[Float[Tensor, "B V"], TransformerState]:
        """Read one word of each sentence and score the next."""
        memory = state.memory
        words = [_models.GrowingCache(pair) for pair in state.words]
        sources = [_models.GrowingCache(pair) for pair in state.sources]
        place = torch.tensor([words[0].length], device=tokens.device)
        x = self.embed(tokens[:, None], place)
        for block, cache, other in zip(
            self.blocks, words, sources, strict=True
        ):
            x, _, _ = block(
                x,
                memory.states[:, other.length :],  # once; then it is cached
                memory_mask=memory.mask,
                cache=cache,
                memory_cache=other,
            )
        kept = (tuple(c.stored for c in part) for part in (words, sources))
        logits = self.output(self.norm(x))[:, 0]
        return logits, TransformerState(memory, *kept)


class LanguageModel(_Stack):
    """Predict every next token from the tokens before it: a GPT, or a Llama.

    ``positions`` is "rotary", "sinusoidal", "learned" (up to ``max_length``)
    or None, ``norm`` "rms" or "layer", ``activation`` "swiglu", "gelu" or
    "relu"; ``d_ff`` is ``4 * d_model`` if omitted, for "swiglu" two thirds of
    that. ``interleaved`` pairs features as ``RotaryPositions`` does. Raises
    TypeError or ValueError for what no model can be built of.

    Source: Radford et al. (2019); Touvron et al. (2023), section 2.2.

    >>> model = LanguageModel(10, d_model=8, num_heads=2, num_layers=1)
    >>> model(torch.tensor([[1, 5, 6]])).shape
    torch.Size([1, 3, 10])

    Built in section 7.10 (sec-language-model).
    """

    generate = generation.generate

    def new_cache(self) -> _models.ModelCache:
        """Make what ``cache`` takes: an empty cache for each block."""
        return _models.new_cache(len(self.blocks))

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        positions: Int[Tensor, "... T"] | None = None,
        cache: _models.ModelCache | None = None,
        need_weights: bool = False,
    ) -> Any:
        """Score the token after each position: ``(B, T, V)``.

        ``mask``, joined with the causal one, covers cached tokens too;
        ``positions``, ``(T,)`` or ``(B, T)``, are those of these tokens.
        They are counted from the cache on; in a row of a mask ``(B, 1,
        cached + T)``, from its first real token. With ``need_weights``
        returns the logits and a list of the weights of each block. Raises
        TypeError or ValueError for what does not fit; no cache is changed.
        """
        cached = _models.check_model_call(self, tokens, cache)
        if positions is None:
            positions = count_positions(tokens, mask, cached=cached)
        options = {"mask": mask, "is_causal": True}
        if self.rotary is not None:
            options["positions"] = positions
        x, seen = self.embed(tokens, positions), []
        with _models.all_or_nothing(cache, len(self.blocks)) as caches:
            for block, own in zip(self.blocks, caches, strict=True):
                x, weights = block(
                    x, cache=own, need_weights=need_weights, **options
                )
                seen.append(weights)
        logits = self.output(self.norm(x))
        return (logits, seen) if need_weights else logits
