"""Draw the pictures of pages that are not notebooks.

python tools/draw.py    writes tools/site/static/mixing.svg
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from attention_lib import reference
from attention_lib.course.figures import COLORS, use_book_style

ROOT = Path(__file__).resolve().parent.parent

WORDS = ("cats", "eat", "fish")


def mixing() -> mpl.figure.Figure:
    """Draw a desk with a slider for each word, and the mix below."""
    use_book_style()
    shades = [COLORS[name] for name in ("pink", "orange", "sky")]
    figure, ax = plt.subplots(figsize=(5.6, 2.6))
    words = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    # What the first word of the book's example listens to.
    parts = reference.attention(words[:1], words, words)[1][0]
    for place, (word, part, shade) in enumerate(
        zip(WORDS, parts, shades, strict=True)
    ):
        x = place + 0.5
        ax.plot([x, x], [0, 1], color=COLORS["grey"], linewidth=2, alpha=0.5)
        ax.plot([x, x], [0, part], color=shade, linewidth=6)
        ax.plot(x, part, "s", color=shade, markersize=17)
        ax.text(x + 0.14, part, f"{100 * part:.0f}", va="center", fontsize=11)
        ax.text(x, 1.12, word, ha="center", fontsize=12)
    left = 0.0
    for word, part, shade in zip(WORDS, parts, shades, strict=True):
        ax.barh(-0.35, 3 * part, left=left, height=0.22, color=shade)
        ax.text(left + 1.5 * part, -0.36, word, ha="center", va="center")
        left += 3 * part
    ax.text(1.5, -0.68, "what “cats” hears", ha="center", fontsize=11)
    ax.set(xlim=(-0.02, 3.02), ylim=(-0.78, 1.28))
    ax.axis("off")
    return figure


def main() -> None:
    """Write the pictures."""
    figure = mixing()
    path = ROOT / "tools" / "site" / "static" / "mixing.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    print(f"draw: {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
