"""Write translations word by word: greedily, or with a beam."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from attention_lib._checks import check_number, check_sizes
from attention_lib.course.corpus import (
    BOS,
    CHINESE,
    ENGLISH,
    EOS,
    PAD,
    pad,
    tokenize_english,
)
from attention_lib.seq2seq import Seq2Seq

__all__ = [
    "Hypothesis",
    "beam_search",
    "greedy_decode",
    "translate",
]


@torch.no_grad()
def greedy_decode(
    model: Seq2Seq,
    source: Int[Tensor, "B Tk"],
    lengths: Int[Tensor, " B"],
    *,
    max_length: int = 100,
) -> list[list[int]]:
    """Translate by taking the most probable word at each step.

    Args:
        model: The translator.
        source: Word numbers, (B, Tk).
        lengths: Number of words of each sentence, (B,).
        max_length: Stop after so many words.

    Returns:
        For each sentence its word numbers, the final ``EOS`` included if the
        model wrote one.
    """
    check_sizes(0, max_length=max_length)
    model.eval()
    state = model.decoder.start(model.encoder(source, lengths))
    tokens = source.new_full((len(source),), BOS)
    done = torch.zeros_like(tokens, dtype=torch.bool)
    rows: list[list[int]] = [[] for _ in range(len(source))]
    for _ in range(max_length):
        logits, state = model.decoder.step(tokens, state)
        tokens = logits.argmax(dim=-1)
        for row, token, finished in zip(
            rows, tokens.tolist(), done.tolist(), strict=True
        ):
            if not finished:
                row.append(token)
        done |= tokens == EOS
        if done.all():
            break
    return rows


def translate(model: Seq2Seq, text: str, *, max_length: int = 100) -> str:
    """Translate one English sentence, greedily.

    Args:
        model: The translator.
        text: A sentence in the words of the toy grammar.
        max_length: Stop after so many words.
    """
    source = pad([[*ENGLISH.encode(tokenize_english(text)), EOS]])
    lengths = torch.tensor([source.shape[1]])
    (row,) = greedy_decode(model, source, lengths, max_length=max_length)
    return "".join(CHINESE.decode(row))


class Hypothesis(NamedTuple):
    """One translation found by :func:`beam_search`.

    Args:
        tokens: The word numbers, the final ``EOS`` included.
        log_probability: The sum of the log-probabilities of the words.
        score: The log-probability, divided by a power of the length.
    """

    tokens: list[int]
    log_probability: float
    score: float


@torch.no_grad()
def beam_search(
    model: Seq2Seq,
    source: Int[Tensor, "B Tk"],
    lengths: Int[Tensor, " B"],
    *,
    beam_size: int = 4,
    max_length: int = 100,
    length_power: float = 0.0,
) -> list[list[Hypothesis]]:
    """Translate by following the best few beginnings at once.

    A finished sentence keeps its place among the ``beam_size`` best until it
    is pushed out; the search ends when all that are left are finished. With
    ``beam_size=1`` it is greedy decoding.

    Args:
        model: The translator.
        source: Word numbers, (B, Tk).
        lengths: Number of words of each sentence, (B,).
        beam_size: How many beginnings are kept.
        max_length: Stop after so many words.
        length_power: The final order is by log-probability divided by
            ``length ** length_power``, where the length counts ``EOS``. 0 is
            the probability itself, which favours short sentences; 1 is the
            mean per word.

    Returns:
        For each sentence its ``beam_size`` hypotheses, best first.

    References:
        Wu et al. (2016), section 7, for length normalisation.
    """
    check_sizes(beam_size=beam_size)
    check_sizes(0, max_length=max_length)
    check_number("length_power", length_power)
    model.eval()
    batch = len(source)
    state = model.decoder.start(model.encoder(source, lengths))
    # Row b * beam_size + k is beam k of sentence b: 0, 0, 1, 1, ...
    sentence = torch.arange(batch, device=source.device)
    first_row = sentence[:, None] * beam_size
    state = model.decoder.reorder(state, sentence.repeat_interleave(beam_size))
    tokens = source.new_full((batch * beam_size,), BOS)
    history = source.new_zeros((batch * beam_size, 0))
    done = torch.zeros_like(tokens, dtype=torch.bool)
    # All beams are alike at first: let only the first one grow.
    totals = torch.full((batch, beam_size), -torch.inf, device=source.device)
    totals[:, 0] = 0.0
    for _ in range(max_length):
        logits, state = model.decoder.step(tokens, state)
        log_probs = logits.float().log_softmax(dim=-1)
        size = log_probs.shape[-1]
        log_probs[done] = -torch.inf  # a finished sentence goes on with
        log_probs[done, PAD] = 0.0  # padding, at no cost
        candidates = totals[:, :, None] + log_probs.view(batch, beam_size, -1)
        totals, best = candidates.flatten(1).topk(beam_size, dim=-1)
        rows = (first_row + best // size).flatten()
        tokens = (best % size).flatten()
        state = model.decoder.reorder(state, rows)
        history = torch.cat([history[rows], tokens[:, None]], dim=1)
        done = done[rows] | (tokens == EOS)
        if done.all():
            break
    found: list[list[Hypothesis]] = []
    for b in range(batch):
        beams = []
        for k in range(beam_size):
            row = history[b * beam_size + k].tolist()
            if EOS in row:
                row = row[: row.index(EOS) + 1]
            total = totals[b, k].item()
            score = total / max(1, len(row)) ** length_power
            beams.append(Hypothesis(row, total, score))
        found.append(sorted(beams, key=lambda h: h.score, reverse=True))
    return found
