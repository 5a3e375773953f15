"""Write translations word by word: greedily, or with a beam."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_lib._checks import check_sizes
from attention_lib.course.corpus import (
    BOS,
    CHINESE,
    ENGLISH,
    EOS,
    pad,
    tokenize_english,
)
from attention_lib.seq2seq import Seq2Seq

__all__ = [
    "Hypothesis",
    "beam_search",
    "evaluating",
    "greedy_decode",
    "translate",
]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate inside: no dropout, no gradients; then all is as before.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def greedy_decode(
    model: Seq2Seq,
    source: Int[Tensor, "B Ts"],
    lengths: Int[Tensor, " B"],
    *,
    max_length: int = 100,
) -> list[list[int]]:
    """Translate by taking the most probable word at each step.

    Returns the word numbers of each sentence, at most ``max_length``, the
    final ``EOS`` included if the model wrote one.
    """
    rows: list[list[int]] = [[] for _ in range(len(source))]
    if not rows:
        return rows
    with evaluating(model):
        state = model.decoder.start(model.encoder(source, lengths))
        tokens = source.new_full((len(source),), BOS)
        for _ in range(max_length):
            logits, state = model.decoder.step(tokens, state)
            tokens = logits.argmax(dim=-1)
            for row, token in zip(rows, tokens.tolist(), strict=True):
                if row[-1:] != [EOS]:
                    row.append(token)
            if all(row[-1] == EOS for row in rows):
                break
    return rows


def translate(model: Seq2Seq, text: str, *, max_length: int = 100) -> str:
    """Translate one English sentence of the toy grammar, greedily."""
    source = pad([[*ENGLISH.encode(tokenize_english(text)), EOS]])
    lengths = torch.tensor([source.shape[1]])
    (row,) = greedy_decode(model, source, lengths, max_length=max_length)
    return "".join(CHINESE.decode(row))


class Hypothesis(NamedTuple):
    """One translation found by ``beam_search``.

    ``tokens`` are the word numbers with the final ``EOS``;
    ``log_probability`` is the sum of those of the words; ``score`` is that,
    divided by a power of the length.
    """

    tokens: list[int]
    log_probability: float
    score: float


class _Finished:
    """The best finished hypotheses of one sentence."""

    def __init__(self, most: int, length_power: float) -> None:
        self.most, self.power = most, length_power
        self.best: list[Hypothesis] = []

    def add(self, tokens: list[int], total: float) -> None:
        """Take one in; of more than ``most`` the worst drops out."""
        score = total / max(1, len(tokens)) ** self.power
        self.best.append(Hypothesis(tokens, total, score))
        self.best.sort(key=lambda each: each.score, reverse=True)
        del self.best[self.most :]

    def is_beyond(self, total: float, length: int, longest: int) -> bool:
        """Whether no longer beginning of this total can come in any more.

        What goes on can only lose probability, so its score is best if it
        ends at once or, for a positive power, at the greatest length.
        """
        if len(self.best) < self.most:
            return total == -math.inf
        reach = [total / n**self.power for n in (length + 1, longest)]
        return self.best[-1].score >= max(reach)


def _extend(
    totals: Float[Tensor, "B beams"],
    words: Int[Tensor, "B beams t"],
    logits: Float[Tensor, "rows V"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Extend each beginning by every word and keep the best, in order.

    Twice as many as there are beams, so that enough are left when some end.
    Returns their totals, their words and the beams that they come from.
    """
    beams, V = totals.shape[1], logits.shape[-1]
    gains = logits.float().log_softmax(dim=-1).unflatten(0, totals.shape)
    totals, best = (
        (totals[..., None] + gains).flatten(1).topk(min(2 * beams, beams * V))
    )
    parents, tokens = best // V, best % V
    rows = torch.arange(len(words), device=words.device)[:, None]
    words = torch.cat([words[rows, parents], tokens[..., None]], dim=-1)
    return totals, words, parents


def beam_search(
    model: Seq2Seq,
    source: Int[Tensor, "B Ts"],
    lengths: Int[Tensor, " B"],
    *,
    beam_size: int = 4,
    max_length: int = 100,
    length_power: float = 0.0,
) -> list[list[Hypothesis]]:
    """Translate by following the ``beam_size`` best beginnings at once.

    Returns for each sentence its ``beam_size`` best hypotheses (fewer if
    there are no more), best first. What ends among the ``beam_size`` best
    continuations is finished and set aside; the best others go on. The
    search ends when no beginning can still beat the finished ones, or at
    ``max_length`` words, where what goes on is cut and counts as it is.

    Hypotheses are compared by log-probability divided by ``length **
    length_power``, ``EOS`` counted: 0 is the probability itself, which
    favours short sentences, 1 the mean per word. A beam of 1 with power 0 is
    greedy decoding.

    Source: Wu et al. (2016), section 7, for the power of the length.
    """
    check_sizes(beam_size=beam_size)
    found = [_Finished(beam_size, length_power) for _ in range(len(source))]
    if not found:
        return []
    with evaluating(model):
        rows = torch.arange(len(source), device=source.device)[:, None]
        words = source.new_full((len(source), beam_size, 1), BOS)
        # All beams are alike at first: let only the first one grow.
        totals = torch.full(words.shape[:2], -math.inf, device=source.device)
        totals[:, 0] = 0.0
        state = model.decoder.start(model.encoder(source, lengths))
        # Row b * beam_size + k is beam k of sentence b: 0, 0, 1, 1, ...
        tiles = rows.expand(-1, beam_size).flatten()
        state = model.decoder.reorder(state, tiles)
        for length in range(1, max_length + 1):
            logits, state = model.decoder.step(words[..., -1].flatten(), state)
            totals, words, parents = _extend(totals, words, logits)
            ended = words[..., -1] == EOS
            over = (ended & totals.isfinite())[:, :beam_size]
            for b, k in over.nonzero().tolist():
                found[b].add(words[b, k, 1:].tolist(), totals[b, k].item())
            # The best of those that have not ended go on, still in order.
            on = ended.byte().argsort(dim=1, stable=True)[:, :beam_size]
            totals, words = totals[rows, on], words[rows, on]
            best = zip(found, totals[:, 0].tolist(), strict=True)
            if all(each.is_beyond(t, length, max_length) for each, t in best):
                break
            state = model.decoder.reorder(
                state, (rows * beam_size + parents[rows, on]).flatten()
            )
        else:  # cut at the limit
            for b, k in totals.isfinite().nonzero().tolist():
                found[b].add(words[b, k, 1:].tolist(), totals[b, k].item())
    return [each.best for each in found]
