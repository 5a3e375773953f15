"""What the attention decoder and its measure of alignment promise."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_lib.course.corpus import ENGLISH, sample_pairs
from attention_lib.course.evaluation import evaluate_alignment
from attention_lib.course.models import attention_model
from attention_lib.course.training import train
from attention_lib.measures import alignment_error_rate
from attention_lib.scores import AdditiveScore, BilinearScore, dot_score
from attention_lib.seq2seq import (
    AttentionDecoder,
    Decoder,
    Memory,
    Seq2Seq,
)

each_place = pytest.mark.parametrize("place", ["output", "input"])
TOKENS = torch.tensor([[1, 5, 4], [1, 3, 7]])


def build(place="output", score=dot_score, **widths):
    decoder = AttentionDecoder(
        9, 4, 6, score=score, context_at=place, **widths
    )
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    return decoder


def random_memory(words=(3, 2), width=6):
    states = torch.randn(len(words), max(words), width)
    mask = torch.arange(max(words)) < torch.tensor(words)[:, None, None]
    return Memory(states * mask.mT, mask, torch.randn(len(words), 6))


# --- where it looks ----------------------------------------------------------


@each_place
def test_weights_sum_to_one_over_the_words_whatever_the_padding_holds(place):
    decoder, memory = build(place), random_memory()
    noise = torch.where(memory.mask.mT, memory.states, 1e6)
    weights = decoder.attention_weights(TOKENS, memory)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    assert not weights[1, :, 2:].any()
    for method in (decoder, decoder.attention_weights):
        assert torch.equal(
            method(TOKENS, memory),
            method(TOKENS, memory._replace(states=noise)),
        )


@each_place
def test_a_sentence_without_a_word_gives_a_context_of_zeros(place):
    decoder, memory = build(place), random_memory((3, 0))
    logits = decoder(TOKENS, memory)
    assert not decoder.attention_weights(TOKENS, memory)[1].any()
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in decoder.parameters())


# --- the two places ----------------------------------------------------------


@each_place
def test_luong_asks_with_the_new_state_and_bahdanau_with_the_old(place):
    asked = []

    def spy(query, key):
        asked.append(query[:, 0])
        return dot_score(query, key)

    decoder = build(place, spy)
    before = decoder.start(random_memory())
    _, after = decoder.step(TOKENS[:, 0], before)
    state = after if place == "output" else before
    torch.testing.assert_close(asked[-1], state[0])


@each_place
def test_only_bahdanaus_context_reaches_the_next_state(place):
    decoder, memory = build(place), random_memory()
    hidden, _ = decoder.start(memory)
    moved = [
        decoder.step(TOKENS[:, 0], (hidden, each))[1][0]
        for each in (memory, memory._replace(states=-memory.states))
    ]
    assert torch.equal(*moved) is (place == "output")


@each_place
def test_a_layer_of_several_heads_can_look_back_in_its_place(place):
    class Heads(AttentionDecoder):
        def _look_back(self, query, memory):
            context, weights = super()._look_back(query, memory)
            return context, torch.stack([weights, weights], dim=1)

    decoder = Heads(9, 4, 6, score=dot_score, context_at=place)
    weights = decoder.attention_weights(TOKENS, random_memory())
    assert weights.shape == (2, 2, 3, 3)


@each_place
def test_training_reaches_every_parameter_and_lowers_the_loss(place):
    model = attention_model(
        BilinearScore(8, 8), hidden_dim=8, embedding_dim=6, context_at=place
    )
    before = {n: p.clone() for n, p in model.named_parameters()}
    pairs = sample_pairs(40)
    log = train(model, pairs, steps=12, batch_size=20, learning_rate=1e-2)
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert log.losses[-1] < log.losses[0]


@each_place
def test_gradients_are_right_through_the_whole_decoder(place):
    score = AdditiveScore(6, 5, 2)  # states and queries differ in width
    decoder = build(place, score, memory_dim=5).double()
    memory = random_memory(width=5)
    states = memory.states.double().requires_grad_()
    final = memory.final.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s, f: decoder(TOKENS[:, :2], Memory(s, memory.mask, f)),
        (states, final),
    )


@pytest.mark.plain
@each_place
def test_looking_back_compiles_into_one_graph(place):
    decoder, memory = build(place, AdditiveScore(6, 6, 5)), random_memory()
    query = torch.randn(2, 3, 6)
    compiled = torch.compile(
        decoder._look_back, fullgraph=True, backend="aot_eager"
    )
    expected = decoder._look_back(query, memory)
    torch.testing.assert_close(compiled(query, memory), expected)


# --- alignment ---------------------------------------------------------------


links = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6)


@given(st.lists(st.tuples(links, links, links), max_size=3))
def test_the_rate_is_that_of_och_and_ney(sentences):
    predicted, sure, extra = (
        [sentence[i] for sentence in sentences] for i in range(3)
    )
    possible = [s | e for s, e in zip(sure, extra, strict=True)]

    def size(*sets):
        pooled = [
            {(n, link) for n, part in enumerate(parts) for link in part}
            for parts in sets
        ]
        return len(set.intersection(*pooled))

    total = size(predicted) + size(sure)
    right = size(predicted, sure) + size(predicted, possible)
    expected = 1 - right / total if total else 0.0
    rate = alignment_error_rate(predicted, sure, possible)
    assert rate == pytest.approx(expected)
    assert alignment_error_rate(predicted, sure, extra) == pytest.approx(rate)


class Reader(torch.nn.Module):
    """An encoder that hands over the words themselves."""

    def forward(self, source, lengths):
        mask = torch.ones(len(source), 1, source.shape[1], dtype=torch.bool)
        return Memory(source[..., None].float(), mask, None)


class Oracle(Decoder):
    """A decoder that looks where it is told."""

    def __init__(self, pairs, place):
        super().__init__()
        self.place = place
        self.pairs = {tuple(ENGLISH.encode(p.source)): p for p in pairs}

    def attention_weights(self, target_input, memory):
        ids = memory.states[..., 0].long()
        weights = torch.zeros(*target_input.shape, ids.shape[1])
        for row, numbers in enumerate(ids.tolist()):
            words = tuple(number for number in numbers if number > 3)
            for target, source in self.pairs[words].alignment:
                weights[row, target, self.place(source, words)] = 1.0
        return weights


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100), st.sampled_from([1, 3, 256]))
def test_looking_where_the_grammar_says_gives_no_error(seed, batch_size):
    pairs = sample_pairs(7, clauses=(1, 2), seed=seed)
    random.Random(seed).shuffle(pairs)
    for place, error in (
        (lambda i, words: i, 0),
        (lambda i, words: len(words), 1),  # the end of the sentence
    ):
        model = Seq2Seq(Reader(), Oracle(pairs, place))
        rate = evaluate_alignment(model, iter(pairs), batch_size=batch_size)
        assert rate == error
    blurred = attention_model(dot_score, hidden_dim=8)
    rates = [evaluate_alignment(blurred, pairs, batch_size=n) for n in (2, 9)]
    assert rates[0] == rates[1]
