"""Answers to the exercises of the chapter on the fixed vector."""

from typing import Any

import torch
from torch import Tensor

from attention_lib.course.exercises._core import (
    Case,
    Exercise,
    Mistake,
    register,
)

# --- 01-translate ----------------------------------------------------------

register(
    Exercise(
        name="01-translate",
        solution="三位喜欢狗的安静的老师画一朵花",
        mistakes=[
            Mistake(
                "三位安静的喜欢狗的老师画一朵花",
                "All parts are there. Look again at the order of relative "
                "clause and adjective in the table.",
            ),
            Mistake(
                "三位安静的老师喜欢狗的画一朵花",
                "Your relative clause stands where English has it. In "
                "Chinese all that describes a noun comes before it.",
            ),
            Mistake(
                "三个喜欢狗的安静的老师画一个花",
                "Which measure word a number takes is decided by the noun; "
                "the list of nouns has it in its fourth column.",
            ),
            Mistake(
                "三喜欢狗的安静的老师画一花",
                "Two measure words are missing: Chinese does not put a "
                "number directly before what it counts.",
            ),
            Mistake(
                "三位喜欢狗的安静的老师画花",
                "The flower has a number too: a is 一.",
            ),
            Mistake(
                "三位喜欢狗安静老师画一朵花",
                "What describes a noun is tied to it by 的, the clause as "
                "well as the adjective.",
            ),
        ],
        checked="measure words, the place of the clause, both 的",
    )
)

# --- 01-scores -------------------------------------------------------------

register(
    Exercise(
        name="01-scores",
        solution=[1 / 3, 7 / 14],
        mistakes=[
            Mistake(
                [1 / 3, 5 / 11],
                "You left out the end marks. Ending at the right place is "
                "part of a translation, so each counts as a word.",
            ),
            Mistake(
                [1 / 3, 7 / 12],
                "You averaged the three shares. Token accuracy counts words "
                "over all sentences, so long ones weigh more.",
            ),
            Mistake(
                [1 / 3, 11 / 14],
                "You counted words that the translation contains anywhere. "
                "They have to stand at the same place.",
            ),
            Mistake(
                [1, 7 / 14],
                "Exact match is a share: divide by the number of sentences.",
            ),
            Mistake(
                [7 / 14, 1 / 3],
                "Exact match comes first, then token accuracy.",
            ),
        ],
        tolerance=6e-3,
        checked="both shares",
    )
)

# --- 01-last-state ---------------------------------------------------------


def _last_states(states: Tensor, lengths: Tensor) -> Tensor:
    return states[torch.arange(len(states)), lengths - 1]


def _very_last(states: Tensor, lengths: Tensor) -> Tensor:
    return states[:, -1]


def _one_too_far(states: Tensor, lengths: Tensor) -> Tensor:
    places = lengths.clamp(max=states.shape[1] - 1)
    return states[torch.arange(len(states)), places]


def _first(states: Tensor, lengths: Tensor) -> Tensor:
    return states[:, 0]


def _all_pairs(states: Tensor, lengths: Tensor) -> Tensor:
    return states[:, lengths - 1]


def _squeezed(states: Tensor, lengths: Tensor) -> Tensor:
    return _last_states(states, lengths).squeeze()


def _mean(states: Tensor, lengths: Tensor) -> Tensor:
    return states.mean(dim=1)


def _numbered(*shape: int) -> Tensor:
    """Squares: all different, and no mean of some is another."""
    count = torch.Size(shape).numel()
    return torch.arange(1.0, 1 + count).square().reshape(shape)


register(
    Exercise(
        name="01-last-state",
        solution=_last_states,
        cases=[
            Case(
                _numbered(1, 3, 2),
                torch.tensor([1]),
                note="one sentence of length 1",
            ),
            Case(
                _numbered(2, 3, 2),
                torch.tensor([3, 1]),
                note="two sentences, no padding and padding",
            ),
            Case(_numbered(4, 5, 3), torch.tensor([2, 5, 1, 4])),
        ],
        mistakes=[
            Mistake(
                _squeezed,
                "A batch of one sentence is still a batch. A bare squeeze() "
                "drops its axis too; the result must be (B, h).",
            ),
            Mistake(
                _very_last,
                "This is the state after the padding. Each sentence has its "
                "own last word, and lengths says where.",
            ),
            Mistake(
                _one_too_far,
                "One place too far: the first word is at place 0, so where "
                "is the last of n words?",
            ),
            Mistake(
                _first,
                "This is the state after the first word of each sentence.",
            ),
            Mistake(
                _all_pairs,
                "states[:, places] takes every place from every sentence. "
                "Pair the places with the row numbers.",
            ),
            Mistake(
                _mean,
                "This is the mean over all places, padding included.",
            ),
        ],
        checked="a single sentence, sentences with and without padding",
    )
)

# --- 01-shift --------------------------------------------------------------


def _decoder_input(target: Tensor) -> Tensor:
    begin = torch.ones_like(target[:, :1])
    return torch.cat([begin, target[:, :-1]], dim=1)


def _unshifted(target: Tensor) -> Tensor:
    return target


def _longer(target: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(target[:, :1]), target], dim=1)


def _rolled(target: Tensor) -> Tensor:
    return target.roll(1, dims=1)


def _overwritten(target: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(target[:, :1]), target[:, 1:]], dim=1)


def _shifted_left(target: Tensor) -> Tensor:
    return torch.cat([target[:, 1:], torch.zeros_like(target[:, :1])], dim=1)


register(
    Exercise(
        name="01-shift",
        solution=_decoder_input,
        cases=[
            Case(torch.tensor([[7, 2]]), note="one word and the end mark"),
            Case(
                torch.tensor([[7, 8, 9, 2], [5, 2, 0, 0]]),
                note="two sentences, one with padding",
            ),
        ],
        mistakes=[
            Mistake(
                _unshifted,
                "The decoder would read the very word that it has to write. "
                "It may only know those before.",
            ),
            Mistake(
                _longer,
                "One place too long: the last word is never read, because "
                "nothing is written after it.",
            ),
            Mistake(
                _rolled,
                "roll brings the last word round to the front. The begin "
                "mark belongs there.",
            ),
            Mistake(
                _overwritten,
                "You replaced the first word by the begin mark. It has to "
                "move, and all that follow with it.",
            ),
            Mistake(
                _shifted_left,
                "You shifted to the left: the decoder would read the word "
                "after the one it has to write.",
            ),
        ],
        checked="one sentence, two with padding, the argument unchanged",
    )
)

# --- 01-tile ---------------------------------------------------------------


def _tile(memory: Tensor, beam_size: int) -> Tensor:
    return memory.repeat_interleave(beam_size, dim=0)


def _whole_copies(memory: Tensor, beam_size: int) -> Tensor:
    return memory.repeat(beam_size, 1, 1)


def _new_axis(memory: Tensor, beam_size: int) -> Tensor:
    return memory[:, None].repeat(1, beam_size, 1, 1)


def _along_words(memory: Tensor, beam_size: int) -> Tensor:
    return memory.repeat_interleave(beam_size, dim=1)


register(
    Exercise(
        name="01-tile",
        solution=_tile,
        cases=[
            Case(_numbered(2, 1, 2), 2, note="two sentences, beam 2"),
            Case(_numbered(2, 3, 2), 3),
            Case(_numbered(1, 2, 2), 1, note="a beam of one"),
        ],
        mistakes=[
            Mistake(
                _whole_copies,
                "repeat makes sentences 0, 1, 0, 1: beam 1 of sentence 0 "
                "would be given sentence 1. The order must be 0, 0, 1, 1.",
            ),
            Mistake(
                _new_axis,
                "The beams have an axis of their own. Merge it with the "
                "batch, so that the result has three axes.",
            ),
            Mistake(
                _along_words,
                "You repeated the words of each sentence. Repeat the "
                "sentences, which are on axis 0.",
            ),
        ],
        checked="two sentences with beams of 2 and 3, and a beam of one",
    )
)

# --- 01-leak ---------------------------------------------------------------


def _judge_leak(answer: Any) -> str | None:
    try:
        loss, exact = (float(number) for number in answer)
    except (TypeError, ValueError):
        return "Give two numbers: the last loss and the exact match."
    if loss > 0.3:
        return (
            f"A loss of {loss:.2f} is that of an honest model. Does "
            "the decoder really read at place t the word of place t?"
        )
    if exact > 0.1:
        return (
            f"An exact match of {exact:.2f} with so little training? "
            "Measure with evaluate, in which the model reads its own words."
        )
    return None


register(
    Exercise(
        name="01-leak",
        judge=_judge_leak,
        checked="a loss near zero beside translations that are wrong",
    )
)
