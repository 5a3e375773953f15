# Written by tools/export.py from these cells, to be edited there:
# 07_transformer.ipynb
"""The Transformer: positions, blocks, encoder, decoder, translator.

The blocks trade weights with PyTorch's layers in both directions, the
translator plugs into the training, decoding and evaluation of
:mod:`attention_lib.seq2seq`, and the same encoder block with a causal mask
is a language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attention_lib._checks import (
    check_indices,
    check_items,
    check_lengths,
    check_number,
    check_sizes,
    check_tensor,
    check_type,
    check_width,
)
from attention_lib.course.corpus import CHINESE, ENGLISH
from attention_lib.masks import padding_mask
from attention_lib.multihead import (
    AttentionCache,
    MultiHeadAttention,
    _mask_of_scores,
)
from attention_lib.positions import (
    LearnedPositions,
    SinusoidalPositions,
    rotate,
)
from attention_lib.seq2seq import Decoder, Memory, Seq2Seq

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "LanguageModel",
    "LayerState",
    "Residual",
    "RotaryMultiHeadAttention",
    "TransformerBlock",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerState",
    "transformer_model",
]


class RotaryMultiHeadAttention(MultiHeadAttention):
    """Multi-head self-attention that sees distances between positions.

    Queries and keys of every head are turned by :func:`rotate`; values are
    not. The arguments are those of
    :class:`~attention_lib.multihead.MultiHeadAttention`; the width of a head
    must be even.

    References:
        Su et al. (2024), RoFormer.

    Example:
        >>> layer = RotaryMultiHeadAttention(d_model=8, num_heads=2)
        >>> layer(torch.randn(3, 5, 8))[0].shape
        torch.Size([3, 5, 8])

    Built in :ref:`section 7.3 <sec-rotary>`.
    """

    def mark_positions(
        self, heads: Float[Tensor, "B heads T d_head"], *, offset: int = 0
    ) -> Float[Tensor, "B heads T d_head"]:
        """Turn queries or keys by their positions.

        Args:
            heads: Projected queries or keys, ``(B, heads, T, d_head)``.
            offset: Number of positions that came before these.
        """
        positions = torch.arange(heads.shape[-2], device=heads.device)
        return rotate(heads, positions + offset)


class Residual(nn.Module):
    """The way around a sublayer, with its layer norm and dropout.

    A sublayer ``f`` is used in two steps, ``change = f(residual.read(x))``
    and ``x = residual.add(x, change)``. Together they are ``x + f(norm(x))``
    with ``norm_first`` and ``norm(x + f(x))`` without.

    Args:
        d_model: Width of the features.
        norm_first: Normalise what the sublayer reads (pre-norm), or the sum
            (post-norm).
        dropout: Probability of dropping an entry of the change in training.
        bias: Whether the norm has a bias.
        norm_eps: Added to the variance inside the norm.

    References:
        He et al. (2016); Ba et al. (2016); Xiong et al. (2020), figure 1.

    Example:
        >>> residual, x = Residual(4), torch.randn(1, 2, 4)
        >>> torch.equal(residual.add(x, torch.zeros_like(x)), x)
        True

    Built in :ref:`section 7.4 <sec-block>`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm_first: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model)
        check_number("dropout", dropout, 0.0, 1.0)
        check_number("norm_eps", norm_eps, low=0.0)
        self.norm_first = norm_first
        self.norm = nn.LayerNorm(d_model, eps=norm_eps, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def read(
        self, states: Float[Tensor, "B T d_model"]
    ) -> Float[Tensor, "B T d_model"]:
        """Return what the sublayer gets to see."""
        (width,) = self.norm.normalized_shape
        check_width("states", states, width, "(B, T, d_model)")
        normed: Tensor = self.norm(states) if self.norm_first else states
        return normed

    def add(
        self,
        states: Float[Tensor, "B T d_model"],
        change: Float[Tensor, "B T d_model"],
    ) -> Float[Tensor, "B T d_model"]:
        """Add what the sublayer says to what went into it."""
        check_tensor("states", states, "floating-point")
        check_tensor("change", change, "floating-point")
        if change.shape != states.shape:
            raise ValueError(
                f"change must have the shape of states, got "
                f"{tuple(change.shape)} and {tuple(states.shape)}"
            )
        total: Tensor = states + self.dropout(change)
        return total if self.norm_first else self.norm(total)


_Activation = Literal["relu", "gelu"]


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between, at each position alone.

    Args:
        d_model: Width of input and output.
        hidden_dim: Width between the two maps.
        activation: ``"relu"`` or ``"gelu"``.
        dropout: Probability of dropping a hidden unit in training.
        bias: Whether the two maps have a bias.

    Raises:
        ValueError: If ``activation`` is neither of the two.

    References:
        Vaswani et al. (2017), section 3.3; Hendrycks and Gimpel (2016) for
        GELU.

    Example:
        >>> FeedForward(4, 16)(torch.randn(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    Built in :ref:`section 7.4 <sec-block>`.
    """

    def __init__(
        self,
        d_model: int,
        hidden_dim: int,
        *,
        activation: _Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ("relu", "gelu"):
            raise ValueError(
                f"activation must be 'relu' or 'gelu', got {activation!r}"
            )
        check_sizes(d_model=d_model, hidden_dim=hidden_dim)
        check_number("dropout", dropout, 0.0, 1.0)
        self.activation = activation
        self.input_proj = nn.Linear(d_model, hidden_dim, bias=bias)
        self.output_proj = nn.Linear(hidden_dim, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, states: Float[Tensor, "B T d_model"]
    ) -> Float[Tensor, "B T d_model"]:
        """Apply the same two maps to every position."""
        width = self.input_proj.in_features
        check_width("states", states, width, "(B, T, d_model)")
        hidden = self.input_proj(states)
        hidden = (
            F.relu(hidden) if self.activation == "relu" else F.gelu(hidden)
        )
        output: Tensor = self.output_proj(self.dropout(hidden))
        return output


def _options_of(
    module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
) -> dict[str, Any]:
    """Read the settings of one of PyTorch's layers."""
    activation = module.activation
    kind: str | None = None
    if activation is F.relu or isinstance(activation, nn.ReLU):
        kind = "relu"
    elif activation is F.gelu or (
        isinstance(activation, nn.GELU) and activation.approximate == "none"
    ):
        kind = "gelu"
    if kind is None:
        raise ValueError(
            f"module has the activation {activation!r}; ReLU and the exact "
            "GELU can be copied"
        )
    rates = {
        part.p if isinstance(part, nn.Dropout) else part.dropout
        for part in module.children()
        if isinstance(part, nn.Dropout | nn.MultiheadAttention)
    }
    if len(rates) > 1:
        raise ValueError(
            f"module has different dropout probabilities, {sorted(rates)}; "
            "a block has one"
        )
    return {
        "d_model": module.self_attn.embed_dim,
        "num_heads": module.self_attn.num_heads,
        "hidden_dim": module.linear1.out_features,
        "norm_first": module.norm_first,
        "activation": kind,
        "dropout": rates.pop(),
        "bias": module.linear1.bias is not None,
        "norm_eps": module.norm1.eps,
    }


def _copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give a linear map or a norm copies of another one's parameters."""
    for name, parameter in source.named_parameters():
        copy = nn.Parameter(
            parameter.detach().clone(), requires_grad=parameter.requires_grad
        )
        setattr(target, name, copy)


_AnyBlock = TypeVar("_AnyBlock", bound="TransformerBlock")


class TransformerBlock(nn.Module):
    """What :class:`EncoderBlock` and :class:`DecoderBlock` have in common.

    Args:
        d_model: Width of the features.
        num_heads: Number of heads; it divides ``d_model``.
        hidden_dim: Width inside the feed-forward layer; ``4 * d_model`` if
            not given.
        norm_first: Layer norm before each sublayer (pre-norm) or after each
            sum (post-norm).
        activation: ``"relu"`` or ``"gelu"``.
        dropout: Probability of dropping weights, hidden units and changes
            in training.
        bias: Whether linear maps and norms have biases.
        norm_eps: Added to the variance inside the norms.
        rotary: Turn queries and keys of the self-attention by their
            positions.

    References:
        Vaswani et al. (2017), section 3.1; Xiong et al. (2020) for pre-norm.

    Example:
        >>> block = EncoderBlock(d_model=8, num_heads=2)
        >>> isinstance(block, TransformerBlock)
        True
        >>> type(block.to_torch()).__name__
        'TransformerEncoderLayer'

    Built in :ref:`section 7.4 <sec-block>`.
    """

    _torch_type: ClassVar[type[nn.Module]]
    _has_memory: ClassVar[bool]
    # The names of PyTorch's parts and of ours.
    _parts: ClassVar[dict[str, str]]

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        hidden_dim: int | None = None,
        *,
        norm_first: bool = True,
        activation: _Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        norm_eps: float = 1e-5,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model, num_heads=num_heads)
        if rotary and d_model % num_heads == 0 and d_model // num_heads % 2:
            raise ValueError(
                "rotary needs heads of even width, got d_model / num_heads = "
                f"{d_model // num_heads}"
            )
        self.d_model, self.num_heads = d_model, num_heads
        self.norm_first = norm_first

        def residual() -> Residual:
            return Residual(
                d_model,
                norm_first=norm_first,
                dropout=dropout,
                bias=bias,
                norm_eps=norm_eps,
            )

        attention = RotaryMultiHeadAttention if rotary else MultiHeadAttention
        self.self_attention = attention(
            d_model, num_heads, bias=bias, dropout=dropout
        )
        self.self_residual = residual()
        if self._has_memory:
            self.cross_attention = MultiHeadAttention(
                d_model, num_heads, bias=bias, dropout=dropout
            )
            self.cross_residual = residual()
        self.feed_forward = FeedForward(
            d_model,
            4 * d_model if hidden_dim is None else hidden_dim,
            activation=activation,
            dropout=dropout,
            bias=bias,
        )
        self.feed_forward_residual = residual()

    @classmethod
    def from_torch(
        cls: type[_AnyBlock],
        module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
    ) -> _AnyBlock:
        """Copy one of PyTorch's layers.

        Args:
            module: :class:`torch.nn.TransformerEncoderLayer` for an
                :class:`EncoderBlock`,
                :class:`torch.nn.TransformerDecoderLayer` for a
                :class:`DecoderBlock`. PyTorch's decoder layer is causal only
                if it is given a mask; the block is by default.

        Returns:
            A block with equal outputs and gradients, batch first.

        Raises:
            TypeError: If ``module`` is another kind of module.
            ValueError: If its activation is neither ReLU nor GELU, or its
                dropout probabilities differ from each other.

        Example:
            >>> theirs = nn.TransformerEncoderLayer(
            ...     8, 2, 16, batch_first=True, norm_first=True
            ... ).eval()
            >>> x = torch.randn(3, 4, 8)
            >>> ours = EncoderBlock.from_torch(theirs)
            >>> torch.allclose(ours(x)[0], theirs(x), atol=1e-5)
            True
        """
        if not isinstance(module, cls._torch_type):
            raise TypeError(
                f"module must be a torch.nn.{cls._torch_type.__name__}, got "
                f"{type(module).__name__}"
            )
        with torch.device("meta"):  # no random number is drawn
            block = cls(**_options_of(module))
        for theirs, ours in cls._parts.items():
            part = module.get_submodule(theirs)
            if isinstance(part, nn.MultiheadAttention):
                setattr(block, ours, MultiHeadAttention.from_torch(part))
            else:
                _copy_parameters(part, block.get_submodule(ours))
        return block.train(module.training)

    def to_torch(
        self, *, batch_first: bool = True
    ) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
        """Copy this block into one of PyTorch's layers.

        Args:
            batch_first: Whether the copy takes ``(B, T, width)`` or
                ``(T, B, width)``.

        Returns:
            A layer with equal outputs and gradients. Its masks mean the
            opposite, ``True`` forbids, and without one it is not causal.

        Raises:
            ValueError: If the block is rotary.
        """
        module = self._torch_type(
            **self._options_for_torch(), batch_first=batch_first
        )
        assert isinstance(
            module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
        )
        for theirs, ours in self._parts.items():
            part = self.get_submodule(ours)
            if isinstance(part, MultiHeadAttention):
                copy = part.to_torch(batch_first=batch_first)
                setattr(module, theirs, copy)
            else:
                _copy_parameters(part, module.get_submodule(theirs))
        return module.train(self.training)

    def _options_for_torch(self) -> dict[str, Any]:
        """Write the settings as PyTorch's layers want them."""
        if isinstance(self.self_attention, RotaryMultiHeadAttention):
            raise ValueError(
                "the block is rotary; PyTorch's layers have no rotary "
                "positions"
            )
        return {
            "d_model": self.d_model,
            "nhead": self.num_heads,
            "dim_feedforward": self.feed_forward.input_proj.out_features,
            "dropout": self.self_attention.dropout,
            "activation": self.feed_forward.activation,
            "layer_norm_eps": self.self_residual.norm.eps,
            "norm_first": self.norm_first,
            "bias": self.feed_forward.input_proj.bias is not None,
            "device": "meta",  # no random number is drawn
        }

    @staticmethod
    def _attend(
        attention: MultiHeadAttention,
        residual: Residual,
        states: Tensor,
        memory: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply an attention; return the new states and the weights."""
        change, weights = attention(residual.read(states), memory, **options)
        return residual.add(states, change), weights

    def _feed(self, states: Tensor) -> Tensor:
        """Apply the feed-forward layer; return the new states."""
        residual = self.feed_forward_residual
        return residual.add(states, self.feed_forward(residual.read(states)))


class EncoderBlock(TransformerBlock):
    """Self-attention, then a feed-forward layer, each beside a residual.

    With ``is_causal`` it is the block of a language model.

    The arguments are those of :class:`TransformerBlock`.

    Example:
        >>> block = EncoderBlock(d_model=8, num_heads=2)
        >>> states, weights = block(torch.randn(3, 5, 8), need_weights=True)
        >>> states.shape, weights.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]))

    Built in :ref:`section 7.4 <sec-block>`.
    """

    _torch_type = nn.TransformerEncoderLayer
    _has_memory = False
    _parts: ClassVar[dict[str, str]] = {
        "self_attn": "self_attention",
        "norm1": "self_residual.norm",
        "linear1": "feed_forward.input_proj",
        "linear2": "feed_forward.output_proj",
        "norm2": "feed_forward_residual.norm",
    }

    def forward(
        self,
        states: Float[Tensor, "B T d_model"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        cache: AttentionCache | None = None,
    ) -> tuple[
        Float[Tensor, "B T d_model"], Float[Tensor, "B heads T Tk"] | None
    ]:
        """Let every position look at the others, then think by itself.

        Args:
            states: ``(B, T, d_model)``.
            mask: ``True`` where a position may attend, in a shape that
                :class:`~attention_lib.multihead.MultiHeadAttention` takes.
            is_causal: No position sees a later one.
            need_weights: Whether to return the weights.
            cache: Keys and values of earlier positions.

        Returns:
            The new states ``(B, T, d_model)``, and the weights
            ``(B, H, T, Tk)`` or ``None``.
        """
        check_width("states", states, self.d_model, "(B, T, d_model)")
        states, weights = self._attend(
            self.self_attention,
            self.self_residual,
            states,
            mask=mask,
            is_causal=is_causal,
            need_weights=need_weights,
            cache=cache,
        )
        return self._feed(states), weights


class DecoderBlock(TransformerBlock):
    """Causal self-attention, attention to a memory, feed-forward layer.

    The arguments are those of :class:`TransformerBlock`. The memory is not
    normalised here: a pre-norm encoder ends in a norm of its own.

    Example:
        >>> block = DecoderBlock(d_model=8, num_heads=2)
        >>> target, memory = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
        >>> states, own, cross = block(target, memory, need_weights=True)
        >>> states.shape
        torch.Size([3, 4, 8])
        >>> own.shape, cross.shape
        (torch.Size([3, 2, 4, 4]), torch.Size([3, 2, 4, 6]))

    Built in :ref:`section 7.4 <sec-block>`.
    """

    _torch_type = nn.TransformerDecoderLayer
    _has_memory = True
    _parts: ClassVar[dict[str, str]] = {
        "self_attn": "self_attention",
        "norm1": "self_residual.norm",
        "multihead_attn": "cross_attention",
        "norm2": "cross_residual.norm",
        "linear1": "feed_forward.input_proj",
        "linear2": "feed_forward.output_proj",
        "norm3": "feed_forward_residual.norm",
    }

    def forward(
        self,
        states: Float[Tensor, "B Tt d_model"],
        memory: Float[Tensor, "B Ts d_model"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = True,
        need_weights: bool = False,
        cache: AttentionCache | None = None,
        memory_cache: AttentionCache | None = None,
    ) -> tuple[
        Float[Tensor, "B Tt d_model"],
        Float[Tensor, "B heads Tt Tall"] | None,
        Float[Tensor, "B heads Tt Tmemory"] | None,
    ]:
        """Look at the words so far, then at the memory, then think.

        Args:
            states: ``(B, Tt, d_model)``.
            memory: What the encoder made, ``(B, Ts, d_model)``: keys and
                values of the second attention.
            mask: ``True`` where a position may attend to another.
            memory_mask: ``True`` where it may attend to the memory; usually
                the padding mask of the source ``(B, 1, Ts)``.
            is_causal: No position sees a later one.
            need_weights: Whether to return the weights.
            cache: Keys and values of earlier positions.
            memory_cache: Keys and values of the memory. ``memory`` then
                holds only what is not yet in it: usually nothing.

        Returns:
            The new states ``(B, Tt, d_model)``, the weights of the
            self-attention ``(B, H, Tt, Tt)`` and those of the
            cross-attention ``(B, H, Tt, Ts)``, or ``None`` twice. With a
            cache the last axis counts the stored positions too.
        """
        check_width("states", states, self.d_model, "(B, Tt, d_model)")
        check_width("memory", memory, self.d_model, "(B, Ts, d_model)")
        if len(memory) != len(states):
            raise ValueError(
                f"memory holds {len(memory)} sentences, states {len(states)}"
            )
        if memory_mask is not None:  # before any cache is written to
            stored = 0 if memory_cache is None else memory_cache.length
            memory_mask = _mask_of_scores(
                "memory_mask",
                memory_mask,
                len(states),
                self.num_heads,
                states.shape[1],
                stored + memory.shape[1],
            )
        states, own_weights = self._attend(
            self.self_attention,
            self.self_residual,
            states,
            mask=mask,
            is_causal=is_causal,
            need_weights=need_weights,
            cache=cache,
        )
        states, cross_weights = self._attend(
            self.cross_attention,
            self.cross_residual,
            states,
            memory,
            mask=memory_mask,
            need_weights=need_weights,
            cache=memory_cache,
        )
        return self._feed(states), own_weights, cross_weights


_PositionKind = Literal["sinusoidal", "learned", "rotary", "none"]


class _Embedding(nn.Module):
    """Word vectors with their positions: what enters a stack of blocks."""

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        positions: _PositionKind,
        max_length: int,
        dropout: float,
    ) -> None:
        super().__init__()
        check_sizes(vocabulary_size=vocabulary_size, d_model=d_model)
        self.words = nn.Embedding(vocabulary_size, d_model)
        self.positions: nn.Module | None = None
        if positions == "sinusoidal":
            self.positions = SinusoidalPositions(d_model)
        elif positions == "learned":
            self.positions = LearnedPositions(max_length, d_model)
        elif positions not in ("rotary", "none"):
            raise ValueError(
                "positions must be 'sinusoidal', 'learned', 'rotary' or "
                f"'none', got {positions!r}"
            )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, *, offset: int = 0) -> Tensor:
        states = self.words(tokens)
        if self.positions is not None:
            states = self.positions(states, offset=offset)
        dropped: Tensor = self.dropout(states)
        return dropped


class _Stack(nn.Module):
    """Embedding, blocks and final norm, as encoder and decoder have them."""

    _block: ClassVar[type[EncoderBlock] | type[DecoderBlock]]
    _predicts: ClassVar[bool] = True

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        *,
        hidden_dim: int | None = None,
        positions: _PositionKind = "sinusoidal",
        max_length: int = 512,
        norm_first: bool = True,
        activation: _Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(num_layers=num_layers, max_length=max_length)
        check_number("dropout", dropout, 0.0, 1.0)
        self.embedding = _Embedding(
            vocabulary_size, d_model, positions, max_length, dropout
        )
        self.blocks = nn.ModuleList(
            self._block(
                d_model,
                num_heads,
                hidden_dim,
                norm_first=norm_first,
                activation=activation,
                dropout=dropout,
                rotary=positions == "rotary",
            )
            for _ in range(num_layers)
        )
        # A pre-norm stack hands on a bare sum; post-norm has normalised it.
        self.norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        if self._predicts:
            self.output = nn.Linear(d_model, vocabulary_size)

    def _logits(self, states: Tensor) -> Tensor:
        """Score every word of the vocabulary at each position."""
        logits: Tensor = self.output(self.norm(states))
        return logits


class TransformerEncoder(_Stack):
    """Read a sentence with self-attention, all words at once.

    Takes the place of :class:`attention_lib.seq2seq.Encoder`. Padding has no
    influence on the states of the words.

    Args:
        vocabulary_size: Number of source words.
        d_model: Width of the states.
        num_heads: Number of heads in each block.
        num_layers: Number of blocks.
        hidden_dim: Width inside the feed-forward layers; ``4 * d_model`` if
            not given.
        positions: ``"sinusoidal"``, ``"learned"``, ``"rotary"`` or
            ``"none"``.
        max_length: Positions in the table of learned positions.
        norm_first: Pre-norm blocks and a final norm, or post-norm blocks.
        activation: ``"relu"`` or ``"gelu"``.
        dropout: Probability of dropping in training.

    References:
        Vaswani et al. (2017), section 3.1.

    Example:
        >>> encoder = TransformerEncoder(10, d_model=8, num_heads=2,
        ...                              num_layers=1)
        >>> memory = encoder(torch.tensor([[5, 4, 2], [6, 2, 0]]),
        ...                  torch.tensor([3, 2]))
        >>> memory.states.shape, memory.mask.shape, memory.final
        (torch.Size([2, 3, 8]), torch.Size([2, 1, 3]), None)

    Built in :ref:`section 7.6 <sec-stacks>`.
    """

    _block = EncoderBlock
    _predicts = False

    def forward(
        self, source: Int[Tensor, "B Ts"], lengths: Int[Tensor, " B"]
    ) -> Memory:
        """Encode a padded batch.

        Args:
            source: Word numbers, ``(B, Ts)``.
            lengths: Number of words of each sentence, ``(B,)``.

        Returns:
            States ``(B, Ts, d_model)``, zero at padding, their mask
            ``(B, 1, Ts)``, and no vector for the whole sentence.
        """
        size = self.embedding.words.num_embeddings
        check_indices("source", source, size, "(B, Ts)")
        check_lengths("lengths", lengths, source.shape)
        mask = padding_mask(lengths.to(source.device), source.shape[1])
        states = self.embedding(source)
        for block in self.blocks:
            states, _ = block(states, mask=mask)
        states = self.norm(states).masked_fill(~mask.mT, 0.0)
        return Memory(states, mask, None)


class _Store:
    """Keys and values of one attention, grown by concatenation.

    Tensors are replaced and never written to, so the states of a decoder
    that share them stay as they are.
    """

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.key, self.value = key, value

    @property
    def length(self) -> int:
        return self.key.shape[-2]

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.key = torch.cat([self.key, key], dim=-2)
        self.value = torch.cat([self.value, value], dim=-2)
        return self.key, self.value


class LayerState(NamedTuple):
    """Keys and values that one decoder block has computed so far.

    Attributes:
        key: Of the words written, ``(B, H, t, d_head)``.
        value: Likewise.
        memory_key: Of the source words, ``(B, H, Ts, d_head)``.
        memory_value: Likewise.

    Built in :ref:`section 7.6 <sec-stacks>`.
    """

    key: Float[Tensor, "B heads t d_head"]
    value: Float[Tensor, "B heads t d_head"]
    memory_key: Float[Tensor, "B heads Ts d_head"]
    memory_value: Float[Tensor, "B heads Ts d_head"]


class TransformerState(NamedTuple):
    """State of a :class:`TransformerDecoder` between two words.

    Attributes:
        mask: The padding mask of the source, ``(B, 1, Ts)``.
        layers: One :class:`LayerState` for each block.

    Built in :ref:`section 7.6 <sec-stacks>`.
    """

    mask: Bool[Tensor, "B 1 Ts"]
    layers: tuple[LayerState, ...]


class TransformerDecoder(_Stack, Decoder):
    """Write a sentence with causal self-attention and cross-attention.

    Training scores all words at once (:meth:`forward`); translating goes
    word by word (:meth:`step`) and keeps the keys and values of earlier
    words. Both give the same logits.

    The arguments are those of :class:`TransformerEncoder`, with the number
    of target words first.

    References:
        Vaswani et al. (2017), section 3.1.

    Example:
        >>> decoder = TransformerDecoder(9, d_model=8, num_heads=2,
        ...                              num_layers=1)
        >>> memory = Memory(torch.zeros(2, 3, 8),
        ...                 torch.ones(2, 1, 3, dtype=torch.bool), None)
        >>> decoder(torch.tensor([[1, 5], [1, 4]]), memory).shape
        torch.Size([2, 2, 9])

    Built in :ref:`section 7.6 <sec-stacks>`.
    """

    _block = DecoderBlock

    def _check_reading(self, target_input: Tensor, memory: Memory) -> None:
        """Refuse words or a memory that do not belong here."""
        check_type("memory", memory, Memory, "a Memory")
        size = self.embedding.words.num_embeddings
        check_indices("target_input", target_input, size, "(B, Tt)")
        if len(target_input) != len(memory.states):
            raise ValueError(
                f"memory holds {len(memory.states)} sentences, target_input "
                f"{len(target_input)}"
            )

    def forward(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt V"]:
        """Score every next word, given the true words before it."""
        self._check_reading(target_input, memory)
        states = self.embedding(target_input)
        for block in self.blocks:
            states, _, _ = block(
                states, memory.states, memory_mask=memory.mask
            )
        return self._logits(states)

    def cross_weights(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "layers B heads Tt Ts"]:
        """Return where each block and head looks in the source.

        Row ``t`` belongs to the step that *reads* target word ``t`` and
        predicts the next one.

        Args:
            target_input: ``BOS`` and target words, ``(B, Tt)``.
            memory: What the encoder made.

        Returns:
            Weights ``(layers, B, H, Tt, Ts)``.
        """
        self._check_reading(target_input, memory)
        states = self.embedding(target_input)
        weights = []
        for block in self.blocks:
            states, _, cross = block(
                states,
                memory.states,
                memory_mask=memory.mask,
                need_weights=True,
            )
            weights.append(cross)
        return torch.stack(weights)

    def attention_weights(
        self, target_input: Int[Tensor, "B Tt"], memory: Memory
    ) -> Float[Tensor, "B Tt Ts"]:
        """Return the mean of :meth:`cross_weights` over blocks and heads.

        Args:
            target_input: ``BOS`` and target words, ``(B, Tt)``.
            memory: What the encoder made.
        """
        return self.cross_weights(target_input, memory).mean((0, 2))

    def start(self, memory: Memory) -> TransformerState:
        """Project the memory once for every block; no word is written yet."""
        check_type("memory", memory, Memory, "a Memory")
        nothing = memory.states[:, :0]  # no query yet
        layers = []
        for block in self.blocks:
            assert isinstance(block, DecoderBlock)
            _, key, value = block.cross_attention.project(
                nothing, memory.states, memory.states
            )
            layers.append(
                LayerState(key[..., :0, :], value[..., :0, :], key, value)
            )
        return TransformerState(memory.mask, tuple(layers))

    def step(
        self, tokens: Int[Tensor, " B"], state: TransformerState
    ) -> tuple[Float[Tensor, "B V"], TransformerState]:
        """Read one word of each sentence and score the next."""
        size = self.embedding.words.num_embeddings
        check_indices("tokens", tokens, size, "(B,)")
        offset = state.layers[0].key.shape[-2]
        states = self.embedding(tokens[:, None], offset=offset)
        nothing = states[:, :0]  # the caches hold the memory already
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            cache = _Store(layer.key, layer.value)
            states, _, _ = block(
                states,
                nothing,
                memory_mask=state.mask,
                cache=cache,
                memory_cache=_Store(layer.memory_key, layer.memory_value),
            )
            layers.append(layer._replace(key=cache.key, value=cache.value))
        logits = self._logits(states)[:, 0]
        return logits, TransformerState(state.mask, tuple(layers))


def transformer_model(
    d_model: int = 64,
    num_heads: int = 4,
    num_layers: int = 2,
    *,
    hidden_dim: int | None = None,
    positions: _PositionKind = "sinusoidal",
    max_length: int = 512,
    norm_first: bool = True,
    activation: _Activation = "relu",
    dropout: float = 0.0,
) -> Seq2Seq:
    """Build a Transformer that translates the toy corpus.

    Args:
        d_model: Width of the states.
        num_heads: Number of heads in each attention.
        num_layers: Number of encoder blocks, and of decoder blocks.
        hidden_dim: Width inside the feed-forward layers; ``4 * d_model`` if
            not given.
        positions: ``"sinusoidal"``, ``"learned"``, ``"rotary"`` or
            ``"none"``.
        max_length: Positions in the table of learned positions.
        norm_first: Pre-norm or post-norm blocks.
        activation: ``"relu"`` or ``"gelu"``.
        dropout: Probability of dropping in training.

    Example:
        >>> from attention_lib.seq2seq import translate
        >>> model = transformer_model(8, 2, 1)
        >>> isinstance(translate(model, "the cat eats fish"), str)
        True

    Built in :ref:`section 7.6 <sec-stacks>`.
    """
    options: dict[str, Any] = {
        "hidden_dim": hidden_dim,
        "positions": positions,
        "max_length": max_length,
        "norm_first": norm_first,
        "activation": activation,
        "dropout": dropout,
    }
    return Seq2Seq(
        TransformerEncoder(
            len(ENGLISH), d_model, num_heads, num_layers, **options
        ),
        TransformerDecoder(
            len(CHINESE), d_model, num_heads, num_layers, **options
        ),
    )


class LanguageModel(_Stack):
    """Predict every next token from the tokens before it.

    A stack of :class:`EncoderBlock` with a causal mask; there is no memory
    and so no cross-attention. This is the architecture of GPT.

    The arguments are those of :class:`TransformerEncoder`.

    References:
        Radford et al. (2019).

    Example:
        >>> model = LanguageModel(10, d_model=8, num_heads=2, num_layers=1)
        >>> model(torch.tensor([[1, 5, 6]])).shape
        torch.Size([1, 3, 10])

    Built in :ref:`section 7.10 <sec-language-model>`.
    """

    _block = EncoderBlock

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        caches: Sequence[AttentionCache] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Score the token after each position.

        Args:
            tokens: Token numbers, ``(B, T)``.
            mask: A further mask beside the causal one, such as a padding
                mask ``(B, 1, T)``. With caches ``T`` counts the stored
                tokens too.
            caches: One cache for each block, with the keys and values of
                the tokens before these.

        Raises:
            ValueError: If there is not one cache for each block.
        """
        size = self.embedding.words.num_embeddings
        check_indices("tokens", tokens, size, "(B, T)")
        if caches is None:
            stores: Sequence[AttentionCache | None] = [None] * len(self.blocks)
            offset = 0
        else:
            what = "caches with length and update"
            given = check_items("caches", caches, AttentionCache, what)
            different = {id(cache) for cache in given}
            if not len(different) == len(given) == len(self.blocks):
                raise ValueError(
                    f"caches holds {len(given)} caches for "
                    f"{len(self.blocks)} blocks, each of which needs its own"
                )
            stores, offset = given, given[0].length
        states = self.embedding(tokens, offset=offset)
        for block, cache in zip(self.blocks, stores, strict=True):
            states, _ = block(states, mask=mask, is_causal=True, cache=cache)
        return self._logits(states)
