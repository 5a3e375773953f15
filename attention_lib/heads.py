# Written by tools/export.py from 06_multihead.ipynb: edit there.
"""Tools to look into a trained layer: shapes, pictures, gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from attention_lib._checks import (
    check_items,
    check_sizes,
    check_tensor,
    check_type,
)
from attention_lib.figures import show_flow
from attention_lib.multihead import MultiHeadAttention
from attention_lib.plotting import show_attention

__all__ = [
    "head_gates",
    "show_heads",
    "show_shapes",
]


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def show_shapes(
    shapes: dict[str, tuple[int, ...]], *, ax: Axes | None = None
) -> Axes:
    """Draw multi-head attention as a flow, with the shape at each arrow.

    Args:
        shapes: The shapes of ``query``, ``key``, ``value``, of the same
            after ``split``: ``query heads``, ``key heads``, ``value heads``,
            then ``scores``, ``weights``, ``context``, ``merged`` and
            ``output``.
        ax: Where to draw; by default a new figure.

    Returns:
        The axes that were drawn in.

    Raises:
        ValueError: If a shape is missing or unknown.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> flow, heads = (2, 4, 12), (2, 3, 4, 4)
        >>> names = ("query", "key", "value", "merged", "output")
        >>> shapes = {name: flow for name in names}
        >>> shapes |= {f"{name} heads": heads for name in names[:3]}
        >>> shapes |= {n: heads for n in ("scores", "weights", "context")}
        >>> ax = show_shapes(shapes)
        >>> plt.close(ax.figure)

    Built in :ref:`section 6.2 <sec-heads>`.
    """
    places = {
        "query": (0.0, 0.0),
        "key": (1.5, 0.0),
        "value": (3.0, 0.0),
        "query heads": (0.0, 1.24),
        "key heads": (1.5, 1.24),
        "value heads": (3.0, 1.24),
        "scores": (0.75, 2.32),
        "weights": (0.75, 3.4),
        "context": (1.9, 4.48),
        "merged": (1.9, 5.56),
        "output": (1.9, 6.64),
    }
    check_type("shapes", shapes, dict, "a dict")
    if set(shapes) != set(places):
        raise ValueError(
            f"shapes must name {', '.join(places)}; got {', '.join(shapes)}"
        )
    steps = [
        *(
            ([name], f"{name}_proj,\nsplit", f"{name} heads")
            for name in ("query", "key", "value")
        ),
        (
            ["query heads", "key heads"],
            "query @ key.mT / sqrt(d_head)",
            "scores",
        ),
        (["scores"], "softmax over keys", "weights"),
        (["weights", "value heads"], "weights @ value", "context"),
        (["context"], "merge", "merged"),
        (["merged"], "output_proj", "output"),
    ]
    return show_flow(shapes, places, steps, ax=ax)


def show_heads(
    weights: Float[Tensor, "H Tq Tk"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    columns: int = 2,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw the weights of every head of one sample, in a grid.

    Args:
        weights: The weights of one sample, ``(H, Tq, Tk)``.
        query_tokens: One label for each query.
        key_tokens: One label for each key.
        columns: Number of heads side by side.
        titles: What to write above the heads; by default their numbers,
            from 1.

    Returns:
        The figure.

    Raises:
        ValueError: If ``weights`` has not three axes, or if there is not one
            title for each head or one label for each row and column.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import torch
        >>> weights = torch.full((3, 1, 2), 0.5)
        >>> figure = show_heads(weights, ["猫"], ["a", "cat"])
        >>> [ax.get_title() for ax in figure.axes[:3]]
        ['head 1', 'head 2', 'head 3']
        >>> plt.close(figure)

    Built in :ref:`section 6.8 <sec-what-heads-see>`.
    """
    import matplotlib.pyplot as plt

    check_type("weights", weights, Tensor, "a torch.Tensor")
    check_sizes(columns=columns)
    check_items("key_tokens", key_tokens, str, "labels")
    check_items("query_tokens", query_tokens, str, "labels")
    if weights.ndim != 3:
        raise ValueError(
            "weights must be those of one sample, (H, Tq, Tk), got shape "
            f"{tuple(weights.shape)}; choose a sample, such as weights[0]"
        )
    heads = weights.shape[0]
    if titles is None:
        titles = [f"head {number}" for number in range(1, heads + 1)]
    if len(titles) != heads:
        raise ValueError(
            f"titles has {len(titles)} entries, weights {heads} heads"
        )
    rows = -(-heads // columns)
    longest = max(map(len, key_tokens), default=1)
    height = 0.75 + 0.075 * longest + 0.2 * len(query_tokens)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.6, rows * height), squeeze=False
    )
    for ax in axes.flat[heads:]:
        ax.axis("off")
    for number, (ax, title) in enumerate(zip(axes.flat, titles, strict=False)):
        show_attention(
            weights[number],
            query_tokens,
            key_tokens,
            ax=ax,
            annotate=False,
            vmax=1.0,
            xlabel="",
            ylabel="",
        )
        ax.set_title(title)
        mesh = ax.collections[0]
        if mesh.colorbar is not None:  # one for all heads is enough
            mesh.colorbar.remove()
    if heads:
        figure.colorbar(mesh, ax=axes, label="weight", shrink=0.6)
    return figure


@contextmanager
def head_gates(
    layer: MultiHeadAttention, gates: Float[Tensor, " H"]
) -> Iterator[None]:
    """Multiply what each head adds to the output by a number.

    A gate of 0 removes a head, 1 leaves it as it is. The parameters are not
    touched, and after the ``with`` block the layer is what it was. Gates may
    require a gradient: its absolute value is the importance of Michel et
    al. (2019).

    Args:
        layer: The layer whose heads are gated.
        gates: One number for each head, ``(H,)``.

    Raises:
        ValueError: If there is not one gate for each head.

    References:
        Michel, Levy and Neubig (2019), equations 2 and 3.

    Example:
        >>> import torch
        >>> layer = MultiHeadAttention(4, 2)
        >>> with head_gates(layer, torch.zeros(2)):
        ...     output, _ = layer(torch.randn(1, 3, 4))
        >>> bool((output == layer.output_proj.bias).all())
        True

    Built in :ref:`section 6.9 <sec-weights-not-importance>`.
    """
    check_type("layer", layer, MultiHeadAttention, "a MultiHeadAttention")
    check_tensor("gates", gates, "floating-point")
    if gates.shape != (layer.num_heads,):
        raise ValueError(
            f"gates must have shape ({layer.num_heads},), one for each head, "
            f"got {tuple(gates.shape)}"
        )

    def gate(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (merged,) = inputs
        return (merged * gates.to(merged).repeat_interleave(layer.d_head),)

    handle = layer.output_proj.register_forward_pre_hook(gate)
    try:
        yield
    finally:
        handle.remove()
