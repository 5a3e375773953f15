"""What the attention decoder and its measure of alignment promise."""

import pickle
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_lib.course.corpus import (
    BOS,
    CHINESE,
    ENGLISH,
    make_batch,
    sample_pairs,
)
from attention_lib.course.evaluation import evaluate_alignment
from attention_lib.course.search import beam_search, greedy_decode
from attention_lib.course.training import train
from attention_lib.measures import alignment_error_rate, hard_alignment
from attention_lib.scores import AdditiveScore, BilinearScore, dot_score
from attention_lib.seq2seq import (
    AttentionDecoder,
    AttentionState,
    Decoder,
    Encoder,
    Memory,
    Seq2Seq,
    attention_model,
)

PLACES = ["output", "input"]
SCORES = {
    "dot": lambda width: dot_score,
    "bilinear": lambda width: BilinearScore(width, width),
    "additive": lambda width: AdditiveScore(width, width, 7),
}
each_place = pytest.mark.parametrize("place", PLACES)
each_score = pytest.mark.parametrize("kind", SCORES)


def build(kind="dot", place="output", width=8):
    torch.manual_seed(0)
    model = attention_model(
        SCORES[kind](width),
        hidden_dim=width,
        embedding_dim=6,
        context_at=place,
    ).double()
    # Weights far from uniform, so that nothing averages out.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model.eval()


def a_batch(count=5, clauses=(1, 2, 3), seed=0):
    return make_batch(sample_pairs(count, clauses=clauses, seed=seed))


def run(model, batch):
    memory = model.encoder(batch.source, batch.source_lengths)
    logits = model.decoder(batch.target_input, memory)
    return logits, model.decoder.attention_weights(batch.target_input, memory)


# --- padding -----------------------------------------------------------------


@each_score
@each_place
def test_a_sentence_gets_the_same_alone_and_in_a_padded_batch(kind, place):
    model = build(kind, place)
    pairs = sample_pairs(5, clauses=(1, 2, 3))
    logits, weights = run(model, make_batch(pairs))
    assert len({len(pair.source) for pair in pairs}) > 1
    for row, pair in enumerate(pairs):
        alone, look = run(model, make_batch([pair]))
        words, sources = look.shape[1:]
        torch.testing.assert_close(logits[row, :words], alone[0])
        torch.testing.assert_close(weights[row, :words, :sources], look[0])
        assert not weights[row, :, sources:].any()


@each_place
def test_nothing_written_on_the_padding_reaches_the_output(place):
    model, batch = build(place=place), a_batch()
    memory = model.encoder(batch.source, batch.source_lengths)
    noise = torch.where(memory.mask.mT, memory.states, 1e6)
    spoiled = memory._replace(states=noise)
    for method in (model.decoder, model.decoder.attention_weights):
        assert torch.equal(
            method(batch.target_input, memory),
            method(batch.target_input, spoiled),
        )


@each_place
def test_weights_sum_to_one_over_the_words(place):
    batch = a_batch()
    _, weights = run(build(place=place), batch)
    assert weights.shape == (
        *batch.target_input.shape,
        batch.source.shape[1],
    )
    torch.testing.assert_close(
        weights.sum(-1), torch.ones(weights.shape[:2]).double()
    )


@each_place
def test_a_sentence_without_a_word_gives_a_context_of_zeros(place):
    model = build(place=place)
    memory = Memory(
        torch.randn(1, 3, 8).double(),
        torch.zeros(1, 1, 3, dtype=torch.bool),
        torch.randn(1, 8 // 2).double(),
    )
    tokens = torch.tensor([[BOS, 7]])
    assert not model.decoder.attention_weights(tokens, memory).any()
    assert model.decoder(tokens, memory).isfinite().all()


# --- the protocol of a decoder -----------------------------------------------


@each_score
@each_place
def test_all_at_once_is_the_same_as_step_by_step(kind, place):
    model, batch = build(kind, place), a_batch()
    logits, _ = run(model, batch)
    memory = model.encoder(batch.source, batch.source_lengths)
    state = model.decoder.start(memory)
    for position, tokens in enumerate(batch.target_input.unbind(1)):
        step, state = model.decoder.step(tokens, state)
        torch.testing.assert_close(step, logits[:, position])
    assert isinstance(state, AttentionState)


@each_place
def test_logits_do_not_depend_on_words_to_come(place):
    model, batch = build(place=place), a_batch()
    changed = batch.target_input.clone()
    changed[:, 3:] = (changed[:, 3:] + 5) % len(CHINESE)
    logits, weights = run(model, batch)
    other, look = run(model, replace(batch, target_input=changed))
    assert torch.equal(logits[:, :3], other[:, :3])
    assert torch.equal(weights[:, :3], look[:, :3])
    assert not torch.equal(logits[:, 3:], other[:, 3:])


@each_place
def test_a_step_writes_nothing_into_the_state_it_was_given(place):
    model, batch = build(place=place), a_batch()
    memory = model.encoder(batch.source, batch.source_lengths)
    state = model.decoder.start(memory)
    copy = pickle.loads(pickle.dumps(state))
    model.decoder.step(batch.target_input[:, 0], state)
    assert torch.equal(state.hidden, copy.hidden)
    for before, after in zip(copy.memory, state.memory, strict=True):
        assert torch.equal(before, after)


@each_place
def test_beams_keep_the_memory_of_their_own_sentence(place):
    model, batch = build(place=place), a_batch(4, clauses=(1, 2))
    together = beam_search(
        model, batch.source, batch.source_lengths, beam_size=3, max_length=9
    )
    for row, beams in enumerate(together):
        length = int(batch.source_lengths[row])
        (alone,) = beam_search(
            model,
            batch.source[row : row + 1, :length],
            batch.source_lengths[row : row + 1],
            beam_size=3,
            max_length=9,
        )
        assert [b.tokens for b in beams] == [b.tokens for b in alone]


@each_place
def test_a_beam_of_one_is_greedy(place):
    model, batch = build(place=place), a_batch(4)
    greedy = greedy_decode(
        model, batch.source, batch.source_lengths, max_length=9
    )
    beams = beam_search(
        model, batch.source, batch.source_lengths, beam_size=1, max_length=9
    )
    assert [found[0].tokens for found in beams] == greedy


@each_place
def test_the_last_sentence_of_an_empty_batch_is_fine(place):
    decoder = build(place=place).decoder
    memory = Memory(
        torch.zeros(0, 3, 8).double(),
        torch.ones(0, 1, 3, dtype=torch.bool),
        torch.zeros(0, 4).double(),
    )
    tokens = torch.zeros(0, 2, dtype=torch.long)
    assert decoder(tokens, memory).shape == (0, 2, len(CHINESE))
    assert decoder.attention_weights(tokens, memory).shape == (0, 2, 3)


# --- the two places ----------------------------------------------------------


def test_luong_asks_with_the_new_state_and_bahdanau_with_the_old():
    asked = []

    def spy(query, key):
        asked.append(query)
        return dot_score(query, key)

    memory = Memory(
        torch.randn(2, 3, 6), torch.ones(2, 1, 3).bool(), torch.randn(2, 6)
    )
    for place, expected in (("output", 1), ("input", 0)):
        decoder = AttentionDecoder(9, 4, 6, score=spy, context_at=place)
        states = [decoder.start(memory)]
        states.append(decoder.step(torch.tensor([1, 1]), states[0])[1])
        query = asked[-1][:, 0]
        torch.testing.assert_close(query, states[expected].hidden)


def test_only_bahdanaus_context_reaches_the_next_state():
    for place, reaches in (("output", False), ("input", True)):
        model, batch = build(place=place), a_batch()
        memory = model.encoder(batch.source, batch.source_lengths)
        state = model.decoder.start(memory)
        other = state._replace(memory=memory._replace(states=-memory.states))
        tokens = batch.target_input[:, 0]
        hidden = [
            model.decoder.step(tokens, s)[1].hidden for s in (state, other)
        ]
        assert torch.equal(*hidden) is not reaches


def test_query_and_key_may_differ_in_width():
    encoder = Encoder(len(ENGLISH), 4, 5, bidirectional=True)
    decoder = AttentionDecoder(
        len(CHINESE),
        4,
        6,
        score=AdditiveScore(6, 10, 3),
        memory_dim=encoder.state_dim,
        final_dim=encoder.final_dim,
    )
    batch = a_batch()
    logits = Seq2Seq(encoder, decoder)(
        batch.source, batch.source_lengths, batch.target_input
    )
    assert logits.shape == (*batch.target_input.shape, len(CHINESE))


@each_score
@each_place
def test_training_reaches_every_parameter_and_lowers_the_loss(kind, place):
    model = build(kind, place).float()
    before = {n: p.clone() for n, p in model.named_parameters()}
    pairs = sample_pairs(40)
    log = train(model, pairs, steps=12, batch_size=20, learning_rate=1e-2)
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert log.losses[-1] < log.losses[0]


@each_place
def test_gradients_are_right_through_the_whole_decoder(place):
    decoder = AttentionDecoder(
        5, 2, 3, score=AdditiveScore(3, 4, 2), memory_dim=4, context_at=place
    ).double()
    mask = torch.tensor([[[True, True, False]], [[True, True, True]]])
    tokens = torch.tensor([[1, 4], [1, 3]])
    states = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    final = torch.randn(2, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s, f: decoder(tokens, Memory(s, mask, f)), (states, final)
    )


# --- alignment ---------------------------------------------------------------


def test_the_largest_weight_makes_the_link():
    weights = torch.tensor([[0.1, 0.9, 0.0], [0.4, 0.3, 0.3]])
    assert hard_alignment(weights) == {(0, 1), (1, 0)}
    assert hard_alignment(torch.zeros(0, 3)) == set()


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
    assert 0 <= rate <= 1
    assert alignment_error_rate(predicted, sure, extra) == pytest.approx(rate)


def test_the_rate_counts_links_and_not_sentences():
    predicted = [{(0, 0)}, {(0, 1), (1, 0), (2, 2)}]
    sure = [{(0, 1)}, {(0, 1), (1, 0), (2, 2)}]
    assert alignment_error_rate(predicted, sure) == pytest.approx(0.25)


def test_possible_links_are_free_but_need_not_be_found():
    sure, possible = [{(0, 0)}], [{(0, 0), (1, 1)}]
    assert alignment_error_rate([{(0, 0)}], sure, possible) == 0
    assert alignment_error_rate([{(0, 0), (1, 1)}], sure, possible) == 0
    assert alignment_error_rate([{(1, 1)}], sure, possible) == 0.5


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
        self.pairs = {
            tuple(ENGLISH.encode(pair.source)): pair for pair in pairs
        }

    def attention_weights(self, target_input, memory):
        ids = memory.states[..., 0].long()
        weights = torch.zeros(*target_input.shape, ids.shape[1])
        for row, numbers in enumerate(ids.tolist()):
            words = [number for number in numbers if number > 3]
            for target, source in self.pairs[tuple(words)].alignment:
                weights[row, target, self.place(source, words)] = 1.0
        return weights


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100), st.sampled_from([1, 3, 256]))
def test_looking_where_the_grammar_says_gives_no_error(seed, batch_size):
    pairs = sample_pairs(7, clauses=(1, 2), seed=seed)
    random.Random(seed).shuffle(pairs)
    right = Seq2Seq(Reader(), Oracle(pairs, lambda i, words: i))
    assert evaluate_alignment(right, pairs, batch_size=batch_size) == 0
    end = Seq2Seq(Reader(), Oracle(pairs, lambda i, words: len(words)))
    assert evaluate_alignment(end, pairs, batch_size=batch_size) == 1


def test_batches_do_not_change_what_is_measured():
    model = build("bilinear").float()
    pairs = sample_pairs(30, clauses=(1, 2, 3))
    whole = evaluate_alignment(model, pairs)
    assert 0 < whole < 1
    assert evaluate_alignment(model, pairs, batch_size=7) == whole


# --- errors ------------------------------------------------------------------


@pytest.mark.plain
def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r'context_at.*"output".*"input"'):
        AttentionDecoder(9, 4, 6, score=dot_score, context_at="middle")
    with pytest.raises(ValueError, match="hidden_dim must be even"):
        attention_model(dot_score, hidden_dim=7)
    decoder = AttentionDecoder(9, 4, 6, score=dot_score)
    memory = Memory(torch.zeros(1, 2, 6), torch.ones(1, 1, 2).bool(), None)
    with pytest.raises(ValueError, match=r"memory\.final is None"):
        decoder.start(memory)
    with pytest.raises(ValueError, match=r"one sentence.*\(2, 3, 4\)"):
        hard_alignment(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="no source word"):
        hard_alignment(torch.zeros(2, 0))
    with pytest.raises(ValueError, match=r"one length, got 1, 2 and 2"):
        alignment_error_rate([set()], [set(), set()])
    for name in ("predicted", "sure", "possible"):
        links = {"predicted": [set()], "sure": [set()], name: [[(0, 0)]]}
        with pytest.raises(TypeError, match=f"{name} must hold sets of links"):
            alignment_error_rate(**links)


@pytest.mark.plain
def test_widths_that_a_score_cannot_compare_are_named():
    decoder = AttentionDecoder(9, 4, 6, score=dot_score, memory_dim=10)
    memory = Memory(
        torch.zeros(1, 2, 10), torch.ones(1, 1, 2).bool(), torch.zeros(1, 6)
    )
    with pytest.raises(ValueError, match="equal widths"):
        decoder(torch.tensor([[1]]), memory)


@pytest.mark.plain
@each_place
def test_looking_back_compiles_into_one_graph(place):
    decoder = build("additive", place).decoder
    query = torch.randn(2, 3, 8).double()
    memory = Memory(
        torch.randn(2, 4, 8).double(), torch.ones(2, 1, 4).bool(), None
    )
    compiled = torch.compile(
        decoder._look_back, fullgraph=True, backend="aot_eager"
    )
    expected, found = (
        decoder._look_back(query, memory),
        compiled(query, memory),
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.plain
def test_a_memory_of_other_sentences_is_refused():
    """One sentence would serve for all, silently."""
    decoder = AttentionDecoder(9, 4, 6, score=dot_score)
    memory = Memory(torch.randn(1, 3, 6), None, torch.randn(2, 6))
    tokens = torch.zeros(2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"final holds 2 .*states 1"):
        decoder(tokens, memory)
    memory = memory._replace(states=torch.randn(2, 3, 6))
    with pytest.raises(ValueError, match="words of 3 sentences"):
        decoder(torch.zeros(3, 2, dtype=torch.long), memory)
