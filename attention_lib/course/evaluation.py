"""Measure translators: exact match, tokens, alignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from attention_lib._checks import check_sizes
from attention_lib.course.corpus import (
    CHINESE,
    EOS,
    Pair,
    make_batch,
    sample_pairs,
)
from attention_lib.course.search import (
    beam_search,
    evaluating,
    greedy_decode,
)
from attention_lib.measures import alignment_error_rate, hard_alignment
from attention_lib.seq2seq import Seq2Seq

__all__ = [
    "Scores",
    "evaluate",
    "evaluate_alignment",
    "evaluate_by_clauses",
    "score_translations",
]


class Scores(NamedTuple):
    """How good some translations are.

    ``exact`` is the share of sentences in which every word and the end are
    right, ``token`` the share of reference words (``EOS`` counts as one) that
    stand at the same place in the translation.
    """

    exact: float
    token: float
    sentences: int


def score_translations(
    translations: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
) -> Scores:
    """Compare translations with references, word by word.

    Each is a list of word numbers with its ``EOS``. Raises ValueError if
    there are not as many of both.

    >>> score_translations([[5, 6, 2], [7, 8, 2]], [[5, 6, 2], [8, 7, 2]])
    Scores(exact=0.5, token=0.6666666666666666, sentences=2)
    """
    exact = right = words = 0
    for translation, reference in zip(translations, references, strict=True):
        exact += list(translation) == list(reference)
        pairs = zip(translation, reference, strict=False)
        right += sum(a == b for a, b in pairs)
        words += len(reference)
    count = len(references)
    return Scores(exact / max(1, count), right / max(1, words), count)


def evaluate(
    model: Seq2Seq,
    pairs: Iterable[Pair],
    *,
    batch_size: int = 256,
    beam_size: int = 1,
) -> Scores:
    """Translate sentences freely and compare with the references.

    The model reads its own words, not the true ones; ``beam_size`` 1 decodes
    greedily. A translation is cut where it is ten words longer than the
    longest reference of its batch. The model's training mode is put back.
    """
    ordered = sorted(pairs, key=lambda pair: len(pair.source))
    translations: list[list[int]] = []
    for start in range(0, len(ordered), batch_size):
        batch = make_batch(ordered[start : start + batch_size])
        given = model, batch.source, batch.source_lengths
        limit = batch.target_output.shape[1] + 10
        if beam_size == 1:
            translations += greedy_decode(*given, max_length=limit)
        else:
            found = beam_search(*given, beam_size=beam_size, max_length=limit)
            translations += [beams[0].tokens for beams in found]
    references = [[*CHINESE.encode(pair.target), EOS] for pair in ordered]
    return score_translations(translations, references)


def evaluate_by_clauses(
    model: Seq2Seq,
    *,
    clauses: Iterable[int] = (1, 2, 3, 4),
    count: int = 200,
    seed: int = 0,
) -> dict[int, Scores]:
    """Evaluate on ``count`` test sentences of each number of clauses."""
    return {
        number: evaluate(
            model,
            sample_pairs(count, clauses=number, split="test", seed=seed),
        )
        for number in clauses
    }


def evaluate_alignment(
    model: Seq2Seq, pairs: Iterable[Pair], *, batch_size: int = 256
) -> float:
    """Measure how far the weights are from the grammar's own alignment.

    The decoder, which has ``attention_weights``, reads the true translation.
    Each Chinese word is linked to the source word with the largest weight;
    the end of the sentence counts as a source word, one that is never right.
    Returns the alignment error rate against the corpus's links, all of which
    are sure.

    >>> from attention_lib.course.models import attention_model
    >>> from attention_lib.scores import dot_score
    >>> model = attention_model(dot_score, hidden_dim=8)
    >>> 0.0 <= evaluate_alignment(model, sample_pairs(4)) <= 1.0
    True
    """
    check_sizes(batch_size=batch_size)
    pairs = list(pairs)
    decoder: Any = model.decoder
    predicted, sure = [], []
    with evaluating(model):
        for start in range(0, len(pairs), batch_size):
            part = pairs[start : start + batch_size]
            batch = make_batch(part)
            memory = model.encoder(batch.source, batch.source_lengths)
            weights = decoder.attention_weights(batch.target_input, memory)
            for pair, rows in zip(part, weights, strict=True):
                predicted.append(hard_alignment(rows[: len(pair.target)]))
                sure.append(set(pair.alignment))
    return alignment_error_rate(predicted, sure)
