"""Measure translators: exact match, tokens, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attention_lib._checks import check_items, check_sizes, check_type
from attention_lib.course.corpus import (
    CHINESE,
    EOS,
    Pair,
    make_batch,
    sample_pairs,
)
from attention_lib.course.search import beam_search, greedy_decode
from attention_lib.measures import alignment_error_rate, hard_alignment
from attention_lib.seq2seq import Seq2Seq

__all__ = [
    "Scores",
    "evaluate",
    "evaluate_alignment",
    "evaluate_by_clauses",
    "score_translations",
]


@torch.no_grad()
def evaluate_alignment(
    model: Seq2Seq, pairs: Sequence[Pair], *, batch_size: int = 256
) -> float:
    """Measure how far the weights are from the grammar's own alignment.

    The decoder reads the true translation. Each Chinese word is linked to
    the source word with the largest weight; the end of the sentence counts
    as a source word, one that is never right. The links are compared with
    the corpus's, all of which are sure.

    Args:
        model: A translator whose decoder has ``attention_weights``.
        pairs: Sentence pairs with their alignment.
        batch_size: Sentences at a time; it has no influence on the result.

    Returns:
        The alignment error rate.

    Example:
        >>> from attention_lib.corpus import sample_pairs
        >>> from attention_lib.scoring import dot_score
        >>> model = attention_model(dot_score, hidden_dim=8)
        >>> 0.0 <= evaluate_alignment(model, sample_pairs(4)) <= 1.0
        True
    """
    check_sizes(batch_size=batch_size)
    pairs = check_items("pairs", pairs, Pair, "pairs")
    check_type("model", model, Seq2Seq, "a Seq2Seq")
    if not hasattr(model.decoder, "attention_weights"):
        raise TypeError("model must have a decoder with attention_weights")
    model.eval()
    decoder: Any = model.decoder
    predicted, sure = [], []
    for start in range(0, len(pairs), batch_size):
        part = pairs[start : start + batch_size]
        batch = make_batch(part)
        memory = model.encoder(batch.source, batch.source_lengths)
        weights = decoder.attention_weights(batch.target_input, memory)
        for pair, rows in zip(part, weights, strict=True):
            predicted.append(hard_alignment(rows[: len(pair.target)]))
            sure.append(set(pair.alignment))
    return alignment_error_rate(predicted, sure)


class Scores(NamedTuple):
    """How good some translations are.

    Args:
        exact: Share of sentences in which every word and the end are right.
        token: Share of reference words (``EOS`` counts as one) that stand at
            the same place in the translation.
        sentences: Number of sentences.
    """

    exact: float
    token: float
    sentences: int


def score_translations(
    translations: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
) -> Scores:
    """Compare translations with references, word by word.

    Args:
        translations: Word numbers of each translation, with its ``EOS``.
        references: Word numbers of each reference, with its ``EOS``.

    Example:
        >>> score_translations([[5, 6, 2], [7, 8, 2]], [[5, 6, 2], [8, 7, 2]])
        Scores(exact=0.5, token=0.6666666666666666, sentences=2)
    """
    if len(translations) != len(references):
        raise ValueError(
            f"translations must be as many as references, got "
            f"{len(translations)} and {len(references)}"
        )
    exact = right = words = 0
    for translation, reference in zip(translations, references, strict=True):
        exact += list(translation) == list(reference)
        right += sum(
            a == b for a, b in zip(translation, reference, strict=False)
        )
        words += len(reference)
    count = len(references)
    return Scores(exact / max(1, count), right / max(1, words), count)


def evaluate(
    model: Seq2Seq,
    pairs: Sequence[Pair],
    *,
    batch_size: int = 256,
    beam_size: int = 1,
) -> Scores:
    """Translate sentences freely and compare with the references.

    The model reads its own words, not the true ones. A translation is cut
    where it is ten words longer than the longest reference of its batch.

    Args:
        model: The translator.
        pairs: The test sentences.
        batch_size: Sentences at a time; it has no influence on the result.
        beam_size: 1 decodes greedily.

    Returns:
        The share of exact sentences and of right words.
    """
    check_sizes(batch_size=batch_size, beam_size=beam_size)
    pairs = check_items("pairs", pairs, Pair, "pairs")
    ordered = sorted(pairs, key=lambda pair: len(pair.source))
    translations: list[list[int]] = []
    for start in range(0, len(ordered), batch_size):
        batch = make_batch(ordered[start : start + batch_size])
        limit = batch.target_output.shape[1] + 10
        if beam_size == 1:
            translations += greedy_decode(
                model, batch.source, batch.source_lengths, max_length=limit
            )
        else:
            found = beam_search(
                model,
                batch.source,
                batch.source_lengths,
                beam_size=beam_size,
                max_length=limit,
            )
            translations += [beams[0].tokens for beams in found]
    references = [[*CHINESE.encode(pair.target), EOS] for pair in ordered]
    return score_translations(translations, references)


def evaluate_by_clauses(
    model: Seq2Seq,
    *,
    clauses: Sequence[int] = (1, 2, 3, 4),
    count: int = 200,
    seed: int = 0,
) -> dict[int, Scores]:
    """Evaluate a translator on test sentences of each length.

    Args:
        model: The translator.
        clauses: The numbers of clauses.
        count: Test sentences of each.
        seed: Decides which sentences.
    """
    return {
        number: evaluate(
            model,
            sample_pairs(count, clauses=number, split="test", seed=seed),
        )
        for number in check_items("clauses", clauses, int, "whole numbers")
    }
