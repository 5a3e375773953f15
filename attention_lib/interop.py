"""Exchange layers with PyTorch."""

from __future__ import annotations

import copy
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from attention_lib._checks import check_type
from attention_lib.masks import from_key_padding_mask, from_mha_mask
from attention_lib.multihead import MultiHeadAttention

__all__ = ["swap_attention"]


class _Adapter(nn.Module):
    """Answer calls that are meant for ``torch.nn.MultiheadAttention``."""

    # PyTorch's blocks look at these before they take a path of their own,
    # past any layer that stands here.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, theirs: nn.MultiheadAttention) -> None:
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
