"""Train the translators that the explorables of chapters 3 and 6 show.

    python tools/trained_maps.py      some minutes on one core

Writes ``tools/trained_maps.json``, from which ``tools/charts.py`` makes the
figures: where trained models look in sentences that they have not seen, one
with the general score, and one for each number of heads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attention_lib import MultiHeadAttention
from attention_lib.course.corpus import (
    CHINESE,
    ENGLISH,
    Pair,
    make_batch,
    sample_pairs,
)
from attention_lib.course.training import train_run
from attention_lib.scores import BilinearScore, dot_score
from attention_lib.seq2seq import (
    AttentionDecoder,
    Encoder,
    Seq2Seq,
    attention_model,
)

TARGET = Path(__file__).with_suffix(".json")
WIDTH, LONGEST = 64, 10  # as many words of English fit on a phone
BUDGET = {"steps": 300, "batch_size": 32, "seed": 0, "progress": False}


class MultiHeadDecoder(AttentionDecoder):
    """The attention decoder, looking back with several heads."""

    def __init__(self, num_heads: int) -> None:
        super().__init__(
            len(CHINESE), 32, WIDTH, score=dot_score, final_dim=WIDTH // 2
        )
        self.attention = MultiHeadAttention(WIDTH, num_heads)

    def _look_back(self, query: Any, memory: Any) -> Any:
        return self.attention(
            query, memory.states, mask=memory.mask, need_weights=True
        )


def with_heads(num_heads: int) -> Seq2Seq:
    """Return an untrained translator whose decoder has several heads."""
    encoder = Encoder(len(ENGLISH), 32, WIDTH // 2, bidirectional=True)
    return Seq2Seq(encoder, MultiHeadDecoder(num_heads))


@torch.no_grad()
def weights_of(model: Any, pair: Pair) -> list[float]:
    """Return where a model looks while it reads the true translation.

    The rows are the Chinese words without the end of the sentence.
    """
    model.eval()
    batch = make_batch([pair])
    memory = model.encoder(batch.source, batch.source_lengths)
    weights = model.decoder.attention_weights(batch.target_input, memory)
    rows = weights[0, ..., : len(pair.target), :].double()
    return [round(weight, 3) for weight in rows.flatten().tolist()]


def different(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Choose short sentences, no two of which have the same links."""
    chosen: dict[Any, Pair] = {}
    for pair in sorted(pairs, key=lambda pair: len(pair.source)):
        if len(pair.source) <= LONGEST:
            chosen.setdefault((len(pair.source), pair.alignment), pair)
    return list(chosen.values())[:: max(1, len(chosen) // count)][:count]


def described(pair: Pair, weights: Any) -> dict[str, Any]:
    """Return a sentence, its translation, what belongs together, and maps."""
    return {
        "english": [*pair.source, "end"],
        "chinese": list(pair.target),
        "links": sorted(map(list, pair.alignment)),
        "weights": weights,
    }


def main() -> None:
    """Train and write."""
    torch.set_num_threads(1)
    unseen = sample_pairs(200, clauses=1, split="test")
    train = sample_pairs(20_000, clauses=(1, 2, 3))
    model, _ = train_run(
        lambda: attention_model(BilinearScore(WIDTH, WIDTH)),
        train,
        learning_rate=1e-2,
        **BUDGET,
    )
    alignment = [
        described(pair, weights_of(model, pair))
        for pair in different(unseen, 12)
    ]
    train = sample_pairs(4000, clauses=(1, 2))
    models = {
        number: train_run(
            partial(with_heads, number), train, learning_rate=8e-3, **BUDGET
        )[0]
        for number in (1, 2, 4, 8)
    }
    heads = [
        described(
            pair,
            {str(n): weights_of(model, pair) for n, model in models.items()},
        )
        for pair in different(unseen, 7)
    ]
    maps = {"alignment": alignment, "heads": heads}
    text = json.dumps(maps, ensure_ascii=False, separators=(",", ":"))
    # One sentence a line, so that a change can be read.
    TARGET.write_text(text.replace('{"english"', '\n{"english"') + "\n")


if __name__ == "__main__":
    main()
