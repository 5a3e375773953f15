"""Masks, weights and whole models to and from PyTorch's own layers."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from attention_lib._checks import (
    check_flags,
    check_sizes,
    check_type,
    kind_of,
    truth,
)
from attention_lib.attention import scaled_dot_product_attention

__all__ = [
    "from_key_padding_mask",
    "from_mha_mask",
    "from_sdpa_mask",
    "swap_attention",
    "to_key_padding_mask",
    "to_mha_mask",
    "to_sdpa_mask",
]


def _to_bool(name: str, mask: Tensor, *, blocked: bool) -> Tensor:
    """Read a mask: boolean, or additive with 0 and minus infinity."""
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return ~mask if blocked else mask
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        raise TypeError(
            f"{name} must be a boolean or floating-point tensor, got "
            f"{kind_of(mask)}"
        )
    keep = mask == 0
    if truth((keep | (mask == -math.inf)).all()) is False:
        raise ValueError(
            f"{name} holds values other than 0 and -inf: it is a bias, which "
            "goes to bias=, or was filled with a finite constant; compare a "
            "filled mask with its constant yourself"
        )
    return keep


def _from_bool(
    mask: Tensor, dtype: torch.dtype | None, *, blocked: bool
) -> Tensor:
    """Write a mask: boolean, or additive in a type."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            "mask must be a boolean tensor (True = may be attended), got "
            f"{kind_of(mask)}"
        )
    if dtype is None:
        return ~mask if blocked else mask
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point type, got {dtype!r}")
    return torch.where(mask, 0.0, -math.inf).to(dtype)


def to_sdpa_mask(
    mask: Bool[Tensor, "..."], *, dtype: torch.dtype | None = None
) -> Shaped[Tensor, "..."]:
    """Write a mask for ``torch.nn.functional.scaled_dot_product_attention``.

    Its booleans mean what ours mean; with ``dtype`` the mask is additive,
    0 or -inf. Raises TypeError for a mask that is not boolean.

    >>> to_sdpa_mask(torch.tensor([True, False]), dtype=torch.float32)
    tensor([0., -inf])
    """
    return _from_bool(mask, dtype, blocked=False)


def from_sdpa_mask(attn_mask: Shaped[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Read a mask of ``torch.nn.functional.scaled_dot_product_attention``.

    It is boolean (True = may be attended) or additive (0 or -inf); other
    numbers raise ValueError.

    >>> from_sdpa_mask(torch.tensor([0.0, float("-inf")]))
    tensor([ True, False])
    """
    return _to_bool("attn_mask", attn_mask, blocked=False)


def to_key_padding_mask(
    mask: Bool[Tensor, "B *one Tk"], *, dtype: torch.dtype | None = None
) -> Shaped[Tensor, "B Tk"]:
    """Write ``(B, 1, Tk)`` or ``(B, 1, 1, Tk)`` as a ``key_padding_mask``.

    PyTorch's layers want ``(B, Tk)`` where True is *blocked*, or additive
    numbers of ``dtype``. Raises ValueError for a mask with a row for each
    query: that goes through ``to_mha_mask``.

    >>> to_key_padding_mask(torch.tensor([[[True, False]]]))
    tensor([[False,  True]])
    """
    written = _from_bool(mask, dtype, blocked=True)
    if mask.dim() not in (3, 4) or any(n != 1 for n in mask.shape[1:-1]):
        raise ValueError(
            "mask must have shape (B, 1, Tk) or (B, 1, 1, Tk), got "
            f"{tuple(mask.shape)}"
        )
    return written.flatten(1)


def from_key_padding_mask(
    key_padding_mask: Shaped[Tensor, "B Tk"],
) -> Bool[Tensor, "B 1 Tk"]:
    """Read the ``key_padding_mask`` ``(B, Tk)`` of PyTorch's layers.

    There True is *blocked*, or the numbers are 0 and -inf. Returns
    ``(B, 1, Tk)``. Raises ValueError for other shapes and numbers.

    >>> from_key_padding_mask(torch.tensor([[False, True]]))
    tensor([[[ True, False]]])
    """
    keep = _to_bool("key_padding_mask", key_padding_mask, blocked=True)
    if keep.dim() != 2:
        raise ValueError(
            "key_padding_mask must have shape (B, Tk), got "
            f"{tuple(keep.shape)}"
        )
    return keep[:, None]


def to_mha_mask(
    mask: Bool[Tensor, "..."],
    *,
    num_heads: int | None = None,
    query_length: int | None = None,
    dtype: torch.dtype | None = None,
) -> Shaped[Tensor, "..."]:
    """Write a mask as the ``attn_mask`` of ``torch.nn.MultiheadAttention``.

    ``(Tq, Tk)`` stays so; ``(B, Tq or 1, Tk)`` and ``(B, H or 1, Tq or 1,
    Tk)`` become ``(B * H, Tq, Tk)``, the heads of a sample side by side,
    and need ``num_heads``, those with one row ``query_length`` too. There
    True is *blocked*. Raises ValueError for what does not fit.

    >>> mask = torch.ones(2, 1, 4, dtype=torch.bool)
    >>> to_mha_mask(mask, num_heads=3, query_length=5).shape
    torch.Size([6, 5, 4])
    """
    written = _from_bool(mask, dtype, blocked=True)
    rows = (1, 1, *mask.shape)[-2]
    length = rows if query_length is None else query_length
    if mask.dim() == 2:
        return written.expand(length, -1)
    if mask.dim() not in (3, 4) or num_heads is None:
        raise ValueError(
            "mask must have 2, 3 or 4 axes, with num_heads= for 3 and 4, got "
            f"shape {tuple(mask.shape)} and num_heads={num_heads}"
        )
    check_sizes(num_heads=num_heads)
    if mask.dim() == 3:
        written = written[:, None]
    return written.expand(-1, num_heads, length, -1).flatten(0, 1)


def from_mha_mask(
    attn_mask: Shaped[Tensor, "..."], *, num_heads: int | None = None
) -> Bool[Tensor, "..."]:
    """Read the ``attn_mask`` of ``torch.nn.MultiheadAttention``.

    ``(Tq, Tk)`` stays so; ``(B * H, Tq, Tk)`` needs ``num_heads`` and
    becomes ``(B, H, Tq, Tk)``. There True is *blocked*, or the numbers are
    0 and -inf. Raises ValueError for other shapes and numbers.

    >>> from_mha_mask(torch.tensor([[False, True], [False, False]]))
    tensor([[ True, False],
            [ True,  True]])
    """
    keep = _to_bool("attn_mask", attn_mask, blocked=True)
    if keep.dim() == 2:
        return keep
    if num_heads is not None:
        check_sizes(num_heads=num_heads)
    if keep.dim() != 3 or num_heads is None or keep.shape[0] % num_heads:
        raise ValueError(
            "attn_mask must have shape (Tq, Tk), or (B * H, Tq, Tk) with "
            f"num_heads=H, got {tuple(keep.shape)} and num_heads={num_heads}"
        )
    return keep.unflatten(0, (-1, num_heads))


_Layer = TypeVar("_Layer", bound=nn.Module)
_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def copied(source: Tensor, like: Tensor | None = None) -> nn.Parameter:
    """Copy numbers into a parameter with memory of its own."""
    like = source if like is None else like
    return nn.Parameter(source.detach().clone(), like.requires_grad)


def check_copyable(module: nn.Module) -> None:
    """Refuse a module that is no attention layer we can copy."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(
            "module must be a torch.nn.MultiheadAttention, got "
            f"{kind_of(module)}"
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


def attention_from_torch(
    cls: type[_Layer], module: nn.MultiheadAttention
) -> _Layer:
    """Copy PyTorch's layer: values, types, devices, training mode."""
    check_copyable(module)
    with torch.device("meta"):  # no random number is drawn
        layer: Any = cls(
            module.embed_dim,
            module.num_heads,
            kdim=module.kdim,
            vdim=module.vdim,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
        )
    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    stack = module.in_proj_weight
    if stack is not None:
        weights = [(part, stack) for part in stack.chunk(3)]
    else:
        weights = [(getattr(module, name),) * 2 for name in _SEPARATE]
    for projection, (part, like) in zip(projections, weights, strict=True):
        projection.weight = copied(part, like)
    if module.in_proj_bias is not None:
        parts = module.in_proj_bias.chunk(3)
        for projection, part in zip(projections, parts, strict=True):
            projection.bias = copied(part, module.in_proj_bias)
    for kind, last in module.out_proj.named_parameters():
        setattr(layer.output_proj, kind, copied(last))
    trained: _Layer = layer.train(module.training)
    return trained


def attention_to_torch(layer: Any, batch_first: bool) -> nn.MultiheadAttention:
    """Copy our layer into PyTorch's, if that has all it has."""
    check_flags(batch_first=batch_first)
    for option, used in (
        ("num_kv_heads", layer.num_kv_heads != layer.num_heads),
        ("d_head", layer.d_head * layer.num_heads != layer.d_model),
        ("scale", layer.scale is not None),
        ("rotary", layer.rotary is not None),
        ("attention", layer.attention is not scaled_dot_product_attention),
    ):
        if used:
            raise ValueError(
                "torch.nn.MultiheadAttention has no counterpart of "
                f"{option}={getattr(layer, option)}"
            )
    inputs = (layer.query_proj, layer.key_proj, layer.value_proj)
    module = nn.MultiheadAttention(
        layer.d_model,
        layer.num_heads,
        dropout=layer.dropout,
        bias=layer.query_proj.bias is not None,
        kdim=layer.kdim,
        vdim=layer.vdim,
        batch_first=batch_first,
        device="meta",
    )
    if module.in_proj_weight is not None:
        weights = [projection.weight for projection in inputs]
        module.in_proj_weight = _packed("weight", weights)
    else:
        for name, projection in zip(_SEPARATE, inputs, strict=True):
            setattr(module, name, copied(projection.weight))
    if module.in_proj_bias is not None:
        biases = [projection.bias for projection in inputs]
        module.in_proj_bias = _packed("bias", biases)
    for kind, last in layer.output_proj.named_parameters():
        setattr(module.out_proj, kind, copied(last))
    return module.train(layer.training)


def _packed(name: str, parts: list[Tensor]) -> nn.Parameter:
    """Stack a parameter of the three input projections."""
    if len({part.requires_grad for part in parts}) > 1:
        raise ValueError(
            f"requires_grad of the {name} differs between query_proj, "
            "key_proj and value_proj, but PyTorch packs the three into one "
            "parameter"
        )
    return copied(torch.cat(parts), parts[0])


class _Adapter(nn.Module):
    """Answer calls that are meant for ``torch.nn.MultiheadAttention``."""

    # PyTorch's blocks look at these before they take a path of their own,
    # past any layer that stands here.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, theirs: nn.MultiheadAttention) -> None:
        from attention_lib.multihead import MultiHeadAttention

        super().__init__()
        self.layer = MultiHeadAttention.from_torch(theirs)
        self.batch_first, self.embed_dim = theirs.batch_first, theirs.embed_dim
        self.num_heads, self.training = theirs.num_heads, theirs.training

    def forward(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        value: Float[Tensor, "..."],
        key_padding_mask: Shaped[Tensor, "..."] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "..."] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."] | None]:
        """Turn inputs and masks into ours, and the answer back."""
        alone, batch = query.dim() == 2, 0 if self.batch_first else 1
        query, key, value = (
            x[None] if alone else x.movedim(batch, 0)
            for x in (query, key, value)
        )
        mask = None
        if attn_mask is not None:
            mask = from_mha_mask(attn_mask, num_heads=self.num_heads)
        if key_padding_mask is not None:
            pads = key_padding_mask[None] if alone else key_padding_mask
            real = from_key_padding_mask(pads)[:, None]
            mask = real if mask is None else mask & real
        hint = is_causal and attn_mask is None  # else it describes the mask
        settings = {"is_causal": hint, "need_weights": need_weights}
        output, weights = self.layer(query, key, value, mask=mask, **settings)
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights[0] if alone else weights
        return output[0] if alone else output.movedim(0, batch), weights


def swap_attention(model: nn.Module) -> nn.Module:
    """Copy a model, with this package's layer in the place of PyTorch's.

    Every ``nn.MultiheadAttention`` in the deep copy is replaced by an
    adapter that is called in the same way and computes with
    ``MultiHeadAttention``: outputs and gradients are equal, with masks, in
    training and in evaluation, and rows that may see nothing give 0 and not
    NaN. Returned weights are those before dropout. ``add_bias_kv``,
    ``add_zero_attn``, a subclass with a ``forward`` of its own and a model
    without such a layer are a ``ValueError``.

    Example:
        >>> import torch
        >>> theirs = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> ours = swap_attention(theirs)
        >>> x = torch.randn(3, 4, 8)
        >>> torch.allclose(ours.eval()(x), theirs.eval()(x), atol=1e-6)
        True
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    memo: dict[int, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            if type(module).forward is not nn.MultiheadAttention.forward:
                raise ValueError(f"{name} has a forward of its own")
            try:
                memo[id(module)] = _Adapter(module)
            except ValueError as error:
                raise ValueError(f"{name or 'model'}: {error}") from None
    if not memo:
        raise ValueError("model holds no torch.nn.MultiheadAttention")
    copied = copy.deepcopy(model, memo)  # which takes the adapters for copies
    for module in copied.modules():
        if isinstance(module, nn.TransformerEncoder):
            # Decided when it was built: to cut padding off by a path that
            # reads the parameters of the attention that is gone.
            module.use_nested_tensor = False
    return copied
