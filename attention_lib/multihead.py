# Written by tools/export.py from these cells, to be edited there:
# 06_multihead.ipynb
"""Multi-head attention: project, split, attend in each head, merge.

One :class:`MultiHeadAttention` serves self-attention, cross-attention,
grouped heads and cached decoding, and trades weights with
:class:`torch.nn.MultiheadAttention` in both directions.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_lib._checks import (
    check_number,
    check_sizes,
    check_tensor,
    check_type,
)
from attention_lib.attention import _autocasts, scaled_dot_product_attention

__all__ = [
    "AttentionCache",
    "MultiHeadAttention",
    "merge_heads",
    "split_heads",
]


def split_heads(
    features: Float[Tensor, "*batch T width"], num_heads: int
) -> Float[Tensor, "*batch heads T d_head"]:
    """Cut the feature axis into heads and move the heads before time.

    Head ``h`` receives the features ``h * d_head`` to
    ``(h + 1) * d_head - 1`` of every position. No number is copied: the
    result is a view.

    Args:
        features: One row of features per position, ``(*batch, T, width)``.
        num_heads: The number of heads ``H``; it divides ``width``.

    Returns:
        The heads, ``(*batch, H, T, width / H)``.

    Raises:
        ValueError: If ``num_heads`` does not divide ``width``.

    Example:
        >>> split_heads(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 2).tolist()
        [[[1.0], [3.0]], [[2.0], [4.0]]]

    Built in :ref:`section 6.2 <sec-heads>`.
    """
    check_tensor("features", features, "floating-point", "(..., T, width)")
    check_sizes(num_heads=num_heads)
    width = features.shape[-1]
    if width % num_heads:
        raise ValueError(
            f"num_heads={num_heads} does not divide the width {width} of "
            f"features with shape {tuple(features.shape)}"
        )
    heads = features.view(*features.shape[:-1], num_heads, width // num_heads)
    return heads.transpose(-3, -2)


def merge_heads(
    heads: Float[Tensor, "*batch heads T d_head"],
) -> Float[Tensor, "*batch T width"]:
    """Put the heads of each position side by side again.

    The inverse of :func:`split_heads`.

    Args:
        heads: One matrix per head, ``(*batch, H, T, d_head)``.

    Returns:
        The concatenated features, ``(*batch, T, H * d_head)``.

    Example:
        >>> heads = torch.arange(8.0).reshape(1, 2, 2, 2)
        >>> merge_heads(heads).tolist()
        [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]

    Built in :ref:`section 6.2 <sec-heads>`.
    """
    check_tensor("heads", heads, "floating-point", "(..., H, T, d_head)")
    return heads.transpose(-3, -2).flatten(-2)


@runtime_checkable
class AttentionCache(Protocol):
    """What :class:`MultiHeadAttention` asks of a cache.

    Any object with these two members will do. It stores keys and values
    after their projection, split into the ``num_kv_heads`` heads.

    Example:
        >>> class Forgetful:
        ...     length = 0
        ...
        ...     def update(self, key, value):
        ...         return key, value
        >>> isinstance(Forgetful(), AttentionCache)
        True

    Built in :ref:`section 6.4 <sec-multihead-layer>`.
    """

    @property
    def length(self) -> int:
        """Number of positions stored so far."""
        ...

    def update(
        self,
        key: Float[Tensor, "B kv_heads new d_head"],
        value: Float[Tensor, "B kv_heads new d_head"],
    ) -> tuple[
        Float[Tensor, "B kv_heads Tk d_head"],
        Float[Tensor, "B kv_heads Tk d_head"],
    ]:
        """Store new keys and values; return all, the new ones last."""
        ...


def _check_input(
    name: str, tensor: Tensor, width: int, parameter: Tensor
) -> None:
    """Refuse what a projection would refuse less clearly."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(tensor).__name__}"
        )
    if tensor.ndim != 3 or tensor.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected "
            f"(batch, length, {width})"
        )
    if tensor.device != parameter.device:
        raise ValueError(
            f"{name} is on {tensor.device}, the layer on {parameter.device}"
        )
    if not tensor.is_floating_point() or (
        tensor.dtype != parameter.dtype and not _autocasts(tensor.device.type)
    ):
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, the layer {parameter.dtype}"
        )


def _check_agreement(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse batches or lengths that do not belong together."""
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(
            "query, key and value have different batch sizes: "
            f"{query.shape[0]}, {key.shape[0]} and {value.shape[0]} "
            "(batch comes first)"
        )
    if key.shape[1] != value.shape[1]:
        raise ValueError(
            f"key has length {key.shape[1]} and value has length "
            f"{value.shape[1]}: each key needs its value"
        )


def _mask_of_scores(
    name: str,
    mask: Tensor,
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
) -> Tensor:
    """Give a mask of 2, 3 or 4 axes the axes of the scores."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a boolean tensor (True = may be attended), got "
            f"{getattr(mask, 'dtype', type(mask).__name__)}; convert a "
            "0/1 mask with mask.bool() and a mask of 0 and -inf with "
            "(mask == 0)"
        )
    rows = (1, query_length)
    allowed: tuple[tuple[int, ...], ...]
    if mask.ndim == 2:
        allowed = ((query_length,), (key_length,))
    elif mask.ndim == 3:
        allowed = ((batch,), rows, (key_length,))
    else:
        allowed = ((1, batch), (1, heads), rows, (key_length,))
    shape = tuple(mask.shape)
    # A compiler knows its sizes as symbols: they are compared one by one,
    # and written out only in a refusal.
    if len(shape) != len(allowed) or any(
        all(size != fit for fit in sizes)
        for size, sizes in zip(shape, allowed, strict=True)
    ):
        expected = {
            2: f"(Tq, Tk) = ({query_length}, {key_length})",
            3: f"(B, Tq or 1, Tk) = ({batch}, {query_length} or 1, "
            f"{key_length})",
        }.get(
            mask.ndim,
            f"(B or 1, H or 1, Tq or 1, Tk) = ({batch} or 1, {heads} or 1, "
            f"{query_length} or 1, {key_length})",
        )
        hint = ""
        if shape == (batch, key_length):
            hint = "; is it a padding mask? pass mask[:, None, :]"
        elif shape == (batch * heads, query_length, key_length):
            hint = (
                "; is it made for torch? from_mha_mask(mask, "
                f"num_heads={heads}) converts it"
            )
        raise ValueError(
            f"{name} has shape {shape}, expected {expected}{hint}"
        )
    return mask if mask.ndim != 3 else mask[:, None]


_AnyLayer = TypeVar("_AnyLayer", bound="MultiHeadAttention")
_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_INPUTS = ("query_proj", "key_proj", "value_proj")


def _copied(source: Tensor, requires_grad: bool) -> nn.Parameter:
    """Copy numbers into a parameter with memory of its own."""
    return nn.Parameter(source.detach().clone(), requires_grad=requires_grad)


def _unpacked(module: nn.MultiheadAttention) -> dict[str, nn.Parameter]:
    """Copy the parameters of PyTorch's layer, under our names."""
    stacks: dict[str, list[tuple[Tensor, bool]]] = {}
    for kind in ("weight", "bias"):
        stack: nn.Parameter | None = getattr(module, f"in_proj_{kind}")
        if stack is not None:
            thirds = stack.detach().chunk(3)
            stacks[kind] = [(third, stack.requires_grad) for third in thirds]
    if "weight" not in stacks:
        weights = [getattr(module, name) for name in _SEPARATE]
        stacks["weight"] = [(w, w.requires_grad) for w in weights]
    named = {
        f"{projection}.{kind}": _copied(*part)
        for kind, parts in stacks.items()
        for projection, part in zip(_INPUTS, parts, strict=True)
    }
    for kind, last in module.out_proj.named_parameters():
        named[f"output_proj.{kind}"] = _copied(last, last.requires_grad)
    return named


def _packed(name: str, *parts: Tensor) -> nn.Parameter:
    """Stack a parameter of the three input projections."""
    if len({part.requires_grad for part in parts}) > 1:
        raise ValueError(
            f"requires_grad of the {name} differs between query_proj, "
            "key_proj and value_proj, but PyTorch packs the three into one "
            "parameter"
        )
    return _copied(torch.cat(parts), parts[0].requires_grad)


class MultiHeadAttention(nn.Module):
    r"""Attention in several subspaces at once.

    Query, key and value are projected, cut into heads, attended in each head
    with the scale :math:`1/\sqrt{d_{head}}`, merged and projected once more.
    The width of a head is ``d_model / num_heads``, so the number of heads
    changes neither the parameters nor the multiplications.

    With ``num_kv_heads < num_heads`` neighbouring query heads share one key
    and value head (grouped heads; ``num_kv_heads=1`` is multi-query
    attention).

    Each projection starts uniform with variance one over its input width,
    so inputs of unit variance give queries, keys and values of unit
    variance, whatever ``kdim``, ``vdim`` and ``num_kv_heads`` are. Biases
    start at zero.

    Args:
        d_model: Width of the query and of the output.
        num_heads: Number of heads ``H``; it divides ``d_model``.
        num_kv_heads: Number of key and value heads; it divides
            ``num_heads``. ``None`` means ``num_heads``.
        kdim: Width of the key input. ``None`` means ``d_model``.
        vdim: Width of the value input. ``None`` means ``d_model``.
        bias: Whether the four projections have a bias.
        dropout: Probability of dropping a weight during training.

    Raises:
        TypeError: If a size is not an int.
        ValueError: If heads or widths do not divide, or a number is out of
            its range.

    References:
        Vaswani et al. (2017), section 3.2.2; Shazeer (2019), "Fast
        Transformer Decoding"; Ainslie et al. (2023), "GQA".

    Example:
        >>> layer = MultiHeadAttention(d_model=12, num_heads=3)
        >>> tokens = torch.randn(2, 5, 12)
        >>> output, weights = layer(tokens, need_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]))

    Built in :ref:`section 6.4 <sec-multihead-layer>`.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.dropout = dropout
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kdim = d_model if kdim is None else kdim
        self.vdim = d_model if vdim is None else vdim
        check_sizes(
            d_model=d_model,
            num_heads=num_heads,
            num_kv_heads=self.num_kv_heads,
            kdim=self.kdim,
            vdim=self.vdim,
        )
        if d_model % num_heads:
            raise ValueError(
                f"num_heads={num_heads} does not divide d_model={d_model}"
            )
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={num_kv_heads} does not divide "
                f"num_heads={num_heads}"
            )
        check_number("dropout", dropout, 0.0, 1.0)
        check_type("bias", bias, bool, "True or False")
        self.d_head = d_model // num_heads
        kv_width = self.num_kv_heads * self.d_head
        self.query_proj = nn.Linear(d_model, d_model, bias=bias)
        self.key_proj = nn.Linear(self.kdim, kv_width, bias=bias)
        self.value_proj = nn.Linear(self.vdim, kv_width, bias=bias)
        self.output_proj = nn.Linear(d_model, d_model, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights of variance ``1 / fan_in``; set biases to 0."""
        for projection in (
            self.query_proj,
            self.key_proj,
            self.value_proj,
            self.output_proj,
        ):
            nn.init.kaiming_uniform_(projection.weight, nonlinearity="linear")
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def extra_repr(self) -> str:
        """Show the settings when the layer is printed."""
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, dropout={self.dropout}"
        )

    def project(
        self,
        query: Float[Tensor, "B Tq d_model"],
        key: Float[Tensor, "B Tk kdim"],
        value: Float[Tensor, "B Tk vdim"],
        *,
        offset: int = 0,
    ) -> tuple[
        Float[Tensor, "B heads Tq d_head"],
        Float[Tensor, "B kv_heads Tk d_head"],
        Float[Tensor, "B kv_heads Tk d_head"],
    ]:
        """Project the inputs, split them into heads, mark positions.

        Args:
            query: ``(B, Tq, d_model)``.
            key: ``(B, Tk, kdim)``.
            value: ``(B, Tk, vdim)``.
            offset: Number of positions that came before these, which is the
                length of the cache.

        Returns:
            Query ``(B, num_heads, Tq, d_head)``, key and value
            ``(B, num_kv_heads, Tk, d_head)``.
        """
        queries = split_heads(self.query_proj(query), self.num_heads)
        keys = split_heads(self.key_proj(key), self.num_kv_heads)
        values = split_heads(self.value_proj(value), self.num_kv_heads)
        return (
            self.mark_positions(queries, offset=offset),
            self.mark_positions(keys, offset=offset),
            values,
        )

    def mark_positions(
        self, heads: Float[Tensor, "B heads T d_head"], *, offset: int = 0
    ) -> Float[Tensor, "B heads T d_head"]:
        """Return queries or keys as they are.

        A subclass that puts positions into them, by a rotation for
        instance, overrides this method.

        Args:
            heads: Projected queries or keys, ``(B, heads, T, d_head)``.
            offset: Number of positions that came before these.
        """
        del offset
        return heads

    def forward(
        self,
        query: Float[Tensor, "B Tq d_model"],
        key: Float[Tensor, "B Tk kdim"] | None = None,
        value: Float[Tensor, "B Tk vdim"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        cache: AttentionCache | None = None,
    ) -> tuple[
        Float[Tensor, "B Tq d_model"],
        Float[Tensor, "B heads Tq Tall"] | None,
    ]:
        """Attend from ``query`` to ``key`` and take a mixture of ``value``.

        Without ``key`` the layer attends from ``query`` to itself; without
        ``value`` the values come from ``key``.

        Args:
            query: ``(B, Tq, d_model)``.
            key: ``(B, Tk, kdim)``.
            value: ``(B, Tk, vdim)``.
            mask: ``True`` where a query may attend: ``(Tq, Tk)``,
                ``(B, Tq or 1, Tk)`` or ``(B or 1, H or 1, Tq or 1, Tk)``.
                With a cache, ``Tk`` counts the stored positions too.
            is_causal: Each query sees no key later than itself, where the
                last query stands beside the last key. Together with
                ``mask`` both hold.
            need_weights: Whether to return the weights. The output is the
                same either way.
            cache: Earlier keys and values. The projected ``key`` and
                ``value`` are appended to it.

        Returns:
            The output ``(B, Tq, d_model)``, and the weights of each head
            before dropout ``(B, H, Tq, Tk)`` or ``None``. A query that may
            attend to nothing has weights of zero, and its output is the bias
            of ``output_proj``.

        Raises:
            ValueError: If a shape or a device does not fit.
            TypeError: If ``mask`` is not boolean, or if an input does not
                have the floating-point type of the parameters.
        """
        if key is None:
            if value is not None:
                raise ValueError(
                    "value is given without key: pass the key as well"
                )
            key = query
        if value is None:
            value = key
        if cache is not None:
            what = "None or a cache with length and update"
            check_type("cache", cache, AttentionCache, what)
        parameter = self.query_proj.weight
        _check_input("query", query, self.d_model, parameter)
        _check_input("key", key, self.kdim, parameter)
        _check_input("value", value, self.vdim, parameter)
        _check_agreement(query, key, value)

        check_type("is_causal", is_causal, bool, "True or False")
        check_type("need_weights", need_weights, bool, "True or False")
        offset = 0 if cache is None else cache.length
        if mask is not None:
            batch, query_length, _ = query.shape
            key_length = offset + key.shape[1]
            mask = _mask_of_scores(
                "mask", mask, batch, self.num_heads, query_length, key_length
            )

        query_heads, key_heads, value_heads = self.project(
            query, key, value, offset=offset
        )
        if cache is not None:  # last: a refused call changes no cache
            key_heads, value_heads = cache.update(key_heads, value_heads)
        group = self.num_heads // self.num_kv_heads
        if group > 1:
            key_heads = key_heads.repeat_interleave(group, dim=1)
            value_heads = value_heads.repeat_interleave(group, dim=1)
        context, weights = scaled_dot_product_attention(
            query_heads,
            key_heads,
            value_heads,
            mask=mask,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        return self.output_proj(merge_heads(context)), weights

    @classmethod
    def from_torch(
        cls: type[_AnyLayer], module: nn.MultiheadAttention
    ) -> _AnyLayer:
        """Copy a :class:`torch.nn.MultiheadAttention`.

        The copy has its own parameters of the same values, type and device,
        and the same dropout, training mode and ``requires_grad``. Whether
        the original takes its batch first plays no part: the copy does.

        Args:
            module: The layer to copy.

        Returns:
            A layer with equal outputs, weights and gradients, unless a
            subclass marks positions.

        Raises:
            TypeError: If ``module`` is another kind of module.
            ValueError: If it was built with ``add_bias_kv`` or
                ``add_zero_attn``, which this layer has not.

        Example:
            >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
            >>> ours = MultiHeadAttention.from_torch(theirs)
            >>> x = torch.randn(3, 4, 8)
            >>> torch.allclose(ours(x)[0], theirs(x, x, x)[0], atol=1e-6)
            True
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(
                "module must be a torch.nn.MultiheadAttention, got "
                f"{type(module).__name__}"
            )
        for option, used in (
            ("add_bias_kv", module.bias_k is not None),
            ("add_zero_attn", module.add_zero_attn),
        ):
            if used:
                raise ValueError(
                    f"module was built with {option}=True, which "
                    "MultiHeadAttention does not offer"
                )
        with torch.device("meta"):  # no random number is drawn
            layer = cls(
                module.embed_dim,
                module.num_heads,
                kdim=module.kdim,
                vdim=module.vdim,
                bias=module.in_proj_bias is not None,
                dropout=module.dropout,
            )
        for name, parameter in _unpacked(module).items():
            projection, kind = name.split(".")
            setattr(layer.get_submodule(projection), kind, parameter)
        return layer.train(module.training)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """Copy this layer into a :class:`torch.nn.MultiheadAttention`.

        The inverse of :meth:`from_torch`: type, device, dropout, training
        mode and ``requires_grad`` are kept.

        Args:
            batch_first: Whether the copy takes ``(B, T, width)`` or
                ``(T, B, width)``.

        Returns:
            A layer with equal outputs and gradients. Its masks mean the
            opposite: ``True`` forbids.

        Raises:
            ValueError: If the layer has grouped heads or marks positions,
                or if ``requires_grad`` differs between parameters that
                PyTorch packs into one.

        Example:
            >>> layer = MultiHeadAttention(8, 2, kdim=6, bias=False)
            >>> back = MultiHeadAttention.from_torch(layer.to_torch())
            >>> torch.equal(back.key_proj.weight, layer.key_proj.weight)
            True
        """
        if self.num_kv_heads != self.num_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} differs from num_heads="
                f"{self.num_heads}: torch.nn.MultiheadAttention has no "
                "grouped heads"
            )
        if type(self).mark_positions is not MultiHeadAttention.mark_positions:
            raise ValueError(
                f"{type(self).__name__} marks positions, which "
                "torch.nn.MultiheadAttention does not"
            )
        check_type("batch_first", batch_first, bool, "True or False")
        inputs = (self.query_proj, self.key_proj, self.value_proj)
        module = nn.MultiheadAttention(
            self.d_model,
            self.num_heads,
            dropout=self.dropout,
            bias=self.query_proj.bias is not None,
            kdim=self.kdim,
            vdim=self.vdim,
            batch_first=batch_first,
            device="meta",
        )
        if module.in_proj_weight is not None:
            weights = [projection.weight for projection in inputs]
            module.in_proj_weight = _packed("weight", *weights)
        else:
            for name, projection in zip(_SEPARATE, inputs, strict=True):
                weight = projection.weight
                setattr(module, name, _copied(weight, weight.requires_grad))
        if module.in_proj_bias is not None:
            biases = [projection.bias for projection in inputs]
            module.in_proj_bias = _packed("bias", *biases)
        for kind, last in self.output_proj.named_parameters():
            copied = _copied(last, last.requires_grad)
            setattr(module.out_proj, kind, copied)
        return module.train(self.training)
