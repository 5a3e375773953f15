"""Encoder, decoders, training, search and scores."""

import itertools
import math
import random
import sys
import types
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention_lib.course.corpus import (
    BOS,
    CHINESE,
    EOS,
    PAD,
    Pair,
    make_batch,
    make_pair,
    sample_pairs,
)
from attention_lib.course.evaluation import (
    evaluate,
    evaluate_alignment,
    evaluate_by_clauses,
    score_translations,
)
from attention_lib.course.models import attention_model, fixed_vector_model
from attention_lib.course.search import beam_search, greedy_decode, translate
from attention_lib.course.training import run_parallel, train, train_run
from attention_lib.scores import AdditiveScore, dot_score
from attention_lib.seq2seq import Decoder, Seq2Seq

MODELS = {
    "fixed": lambda: fixed_vector_model(8, 4),
    "narrow": lambda: fixed_vector_model(8, 4, context_dim=3),
    "both ways": lambda: fixed_vector_model(8, 4, bidirectional=True),
    "output": lambda: attention_model(dot_score, hidden_dim=8),
    "input": lambda: attention_model(
        AdditiveScore(8, 8, 5), hidden_dim=8, context_at="input"
    ),
}
each_model = pytest.mark.parametrize("kind", MODELS)


def build(kind):
    """A random model that decides clearly, for searches."""
    torch.manual_seed(1)
    model = MODELS[kind]().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def run(model, batch):
    """Logits under teacher forcing, and weights if there are any."""
    memory = model.encoder(batch.source, batch.source_lengths)
    found = [model.decoder(batch.target_input, memory)]
    if hasattr(model.decoder, "attention_weights"):
        found.append(
            model.decoder.attention_weights(batch.target_input, memory)
        )
    return found


# --- padding ---------------------------------------------------------------


@each_model
@settings(max_examples=8)
@given(seed=st.integers(0, 99), clauses=st.integers(1, 3))
def test_a_sentence_gets_the_same_alone_and_in_a_padded_batch(
    kind, seed, clauses
):
    model = build(kind)
    pairs = sample_pairs(4, clauses=(1, clauses), seed=seed)
    batch = make_batch(pairs)
    memory = model.encoder(batch.source, batch.source_lengths)
    assert not memory.states[~memory.mask[:, 0]].any()
    together = run(model, batch)
    for row, pair in enumerate(pairs):
        one = make_batch([pair])
        words, length = one.target_input.shape[1], one.source.shape[1]
        for ours, alone in zip(together, run(model, one), strict=True):
            ours = ours[row, :words, : alone.shape[-1]]
            torch.testing.assert_close(ours, alone[0])
        final = model.encoder(one.source, one.source_lengths).final
        torch.testing.assert_close(memory.final[row], final[0])
        for weights in together[1:]:
            assert not weights[row, :, length:].any()


# --- the interface of a decoder --------------------------------------------


@each_model
def test_reading_at_once_equals_reading_word_by_word(kind):
    model, batch = build(kind), make_batch(sample_pairs(3, clauses=(1, 2)))
    memory = model.encoder(batch.source, batch.source_lengths)
    torch.testing.assert_close(
        model.decoder(batch.target_input, memory),
        Decoder.forward(model.decoder, batch.target_input, memory),
    )


@each_model
def test_a_word_changes_nothing_before_it(kind):
    model, batch = build(kind), make_batch(sample_pairs(3, clauses=(1, 2)))
    changed = batch.target_input.clone()
    changed[:, 3:] = (changed[:, 3:] + 5) % len(CHINESE)
    before, after = (
        run(model, replace(batch, target_input=words))
        for words in (batch.target_input, changed)
    )
    for ours, theirs in zip(before, after, strict=True):
        assert torch.equal(ours[:, :3], theirs[:, :3])
        assert not torch.equal(ours[:, 3:], theirs[:, 3:])


def test_the_fixed_vector_reaches_every_step():
    model, batch = build("fixed"), make_batch(sample_pairs(1))
    memory = model.encoder(batch.source, batch.source_lengths)
    memory = memory._replace(final=memory.final.detach().requires_grad_())
    logits = model.decoder(batch.target_input, memory)
    for step in logits.unbind(1):
        (gradient,) = torch.autograd.grad(
            step.pow(2).sum(), memory.final, retain_graph=True
        )
        assert gradient.abs().min() > 0


def test_the_width_of_the_vector_changes_nothing_else():
    narrow, wide = (fixed_vector_model(16, context_dim=n) for n in (4, 32))
    changed = {
        name
        for name, weight in narrow.state_dict().items()
        if weight.shape != wide.state_dict()[name].shape
    }
    assert changed == {
        *("encoder.bridge.weight", "encoder.bridge.bias"),
        *("decoder.bridge.weight", "decoder.gru.weight_ih_l0"),
    }
    batch = make_batch(sample_pairs(3))
    memory = narrow.encoder(batch.source, batch.source_lengths)
    assert memory.final.shape == (3, 4)


@each_model
@pytest.mark.parametrize("sentences", [0, 2])
@pytest.mark.parametrize("words", [0, 3])
def test_no_sentences_and_no_words_are_fine(kind, sentences, words):
    model = MODELS[kind]()
    lengths = torch.full((sentences,), 4)
    memory = model.encoder(torch.full((sentences, 4), 5), lengths)
    target = torch.full((sentences, words), 6)
    shape = (sentences, words, len(CHINESE))
    logits = model.decoder(target, memory)
    assert logits.shape == shape
    logits.sum().backward()
    assert Decoder.forward(model.decoder, target, memory).shape == shape
    if hasattr(model.decoder, "attention_weights"):
        weights = model.decoder.attention_weights(target, memory)
        assert weights.shape == (sentences, words, 4)


@each_model
def test_search_and_evaluation_of_nothing_end(kind):
    model, batch = MODELS[kind](), make_batch(sample_pairs(1))
    nothing = torch.zeros(0, 0).long(), torch.zeros(0).long()
    assert greedy_decode(model, *nothing) == beam_search(model, *nothing) == []
    given = model, batch.source, batch.source_lengths
    assert greedy_decode(*given, max_length=0) == [[]]
    assert beam_search(*given, max_length=0) == [[([], 0.0, 0.0)]]
    silent = Pair(("the", "cat"), (), (), 1)
    for beam_size in (1, 2):
        assert evaluate(model, [], beam_size=beam_size) == (0.0, 0.0, 0)
        assert evaluate(model, [silent], beam_size=beam_size).sentences == 1
    if hasattr(model.decoder, "attention_weights"):
        assert evaluate_alignment(model, []) == 0.0
        assert evaluate_alignment(model, [silent]) == 0.0


# --- search ----------------------------------------------------------------


class Table(Decoder):
    """What comes next depends on the place and on the last word alone."""

    def __init__(self, probabilities):
        super().__init__()
        self.logits = torch.as_tensor(probabilities).log()

    def start(self, memory):
        return {"place": [torch.zeros(len(memory)).long()], "nothing": None}

    def step(self, tokens, state):
        (place,) = state["place"]
        return self.logits[place, tokens], state | {"place": [place + 1]}


def search(table, **options):
    model = Seq2Seq(nn.Embedding(1, 1), Table(table))
    model.encoder.forward = lambda source, lengths: source
    (found,) = beam_search(
        model, torch.zeros(1, 1).long(), torch.ones(1).long(), **options
    )
    return found


def random_table(seed, longest, words, peaked=4.0):
    torch.manual_seed(seed)
    peaked = peaked * torch.rand(longest, 1, 1)  # some steps are sure
    return (peaked * torch.randn(longest, words, words)).softmax(-1)


def probability(table, words):
    places = zip(itertools.count(), [BOS, *words], words, strict=False)
    return sum(table[t, a, b].log().item() for t, a, b in places)


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.7, 1.0])
def test_a_beam_of_everything_finds_the_best_sentences(power):
    """Everything a decoder can say: ended by EOS, or cut at the limit."""
    table, others = random_table(0, 3, 4), (0, 1, 3)
    said = [
        [*w, EOS]
        for n in range(3)
        for w in itertools.product(others, repeat=n)
    ]
    said += map(list, itertools.product(others, repeat=3))
    scores = [probability(table, w) / len(w) ** power for w in said]
    found = search(table, beam_size=4**3, max_length=3, length_power=power)
    assert len(found) == len(said)
    for (tokens, total, score), best in zip(
        found, sorted(scores, reverse=True), strict=True
    ):
        assert math.isclose(score, best, abs_tol=1e-5)
        assert math.isclose(total, probability(table, tokens), abs_tol=1e-5)


def slow_beam(table, size, power):
    """Beam search in lists, without an end before the limit."""
    going, ended = [[]], []
    for _ in range(len(table)):
        grown = [[*words, word] for words in going for word in range(5)]
        grown.sort(key=lambda words: -probability(table, words))
        ended += [words for words in grown[:size] if words[-1] == EOS]
        going = [words for words in grown if words[-1] != EOS][:size]
    ended += going
    ended.sort(
        key=lambda words: -probability(table, words) / len(words) ** power
    )
    return ended[:size]


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 4),
    longest=st.integers(1, 6),
    power=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    peaked=st.sampled_from([2.0, 6.0, 20.0]),
)
def test_stopping_early_loses_nothing(seed, size, longest, power, peaked):
    table = random_table(seed, longest, 5, peaked)
    found = search(
        table, beam_size=size, max_length=longest, length_power=power
    )
    assert [each.tokens for each in found] == slow_beam(table, size, power)


@pytest.mark.parametrize(
    ("first", "words", "options"),
    [
        ([0.0, 0.0, 0.31, 0.35, 0.34], 1, (3, 9, 0.0)),
        ([0.06, 0.06, 0.7, 0.12, 0.06], 6, (1, 6, 2.0)),
        ([0.0, 0.0, 0.05, 0.9, 0.05], 3, (2, 12, -2.0)),
    ],
    ids=["at once", "late and long", "late and short"],
)
def test_what_is_finished_is_kept_and_what_can_still_win_goes_on(
    first, words, options
):
    beam_size, max_length, power = options
    table = torch.full((max_length, 5, 5), 0.2)  # unsure of everything, or
    table[0, BOS] = torch.tensor(first)
    if words > 1:  # sure of 3 3 ... and its end
        table[1:, 3:] = torch.eye(5)[EOS]
        table[1 : words - 1, 3] = torch.eye(5)[3]
    found = search(
        table, beam_size=beam_size, max_length=max_length, length_power=power
    )
    assert found[0].tokens == [3] * (words - 1) + [EOS]


@each_model
def test_beams_of_a_batch_are_those_of_single_sentences(kind):
    model = build(kind)
    batch = make_batch(sample_pairs(4, clauses=(1, 2)))
    given = batch.source, batch.source_lengths
    greedy = greedy_decode(model, *given, max_length=9)
    for size in (1, 3):
        options = {"beam_size": size, "max_length": 9}
        together = beam_search(model, *given, **options)
        for row, beams in enumerate(together):
            n = int(batch.source_lengths[row])
            one = batch.source[row : row + 1, :n], torch.tensor([n])
            (alone,) = beam_search(model, *one, **options)
            assert [h.tokens for h in beams] == [h.tokens for h in alone]
            assert size > 1 or beams[0].tokens == greedy[row]


# --- scores ----------------------------------------------------------------


def test_words_are_compared_place_by_place_and_counted_one_by_one():
    reference, wrong = [4, 5, EOS], {(4, 6, EOS): 2, (9, 4, 5, EOS): 0}
    wrong |= {(4, 5, EOS, 7): 3, (4, 5): 2, (): 0}
    for translation, right in wrong.items():
        scores = score_translations(
            [translation, [4, EOS]], [reference, [4, EOS]]
        )
        assert scores == (0.5, (right + 2) / 5, 2)


def test_a_model_that_knows_its_sentences_by_heart_scores_one():
    pairs = [make_pair(random.Random(n), 1 + n % 2) for n in range(6)]
    budget = {"steps": 150, "batch_size": 6, "learning_rate": 1e-2}
    model, log = train_run(
        lambda: fixed_vector_model(32), pairs, seed=0, **budget
    )
    assert len(log.losses) == 150
    assert not model.training
    for batch_size, beam_size in ((1, 1), (4, 1), (256, 3)):
        scores = evaluate(
            model, iter(pairs), batch_size=batch_size, beam_size=beam_size
        )
        assert scores == (1.0, 1.0, 6)
    assert translate(model, pairs[0].english) == pairs[0].chinese
    scores = evaluate_by_clauses(model, clauses=(1, 2), count=5)
    assert [scores[n].sentences for n in (1, 2)] == [5, 5]


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch: greedy_decode(model, *batch),
        lambda model, batch: beam_search(model, *batch),
        lambda model, batch: evaluate(model, sample_pairs(2)),
        lambda model, batch: evaluate_alignment(model, sample_pairs(2)),
    ],
    ids=["greedy", "beam", "evaluate", "alignment"],
)
def test_the_training_mode_of_every_part_is_put_back(use):
    model, batch = MODELS["output"](), make_batch(sample_pairs(2))
    model.encoder.gru.eval()  # a frozen part
    modes = [part.training for part in model.modules()]
    seen = []
    model.decoder.output.register_forward_hook(
        lambda part, *_: seen.append(part.training or torch.is_grad_enabled())
    )
    use(model, (batch.source, batch.source_lengths))
    assert seen
    assert not any(seen)
    assert [part.training for part in model.modules()] == modes
    model.decoder.output.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        use(model, (batch.source, batch.source_lengths))
    assert [part.training for part in model.modules()] == modes


# --- training --------------------------------------------------------------


def short_run(seed, **changes):
    budget = {"steps": 4, "batch_size": 8, "progress": False, **changes}
    pairs = sample_pairs(64)
    return train_run(lambda: fixed_vector_model(8), pairs, seed=seed, **budget)


def assert_equal_runs(first, second):
    for ours, theirs in zip(
        first[0].parameters(), second[0].parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert first[1].losses == second[1].losses


def test_the_seed_decides_start_and_order():
    first = short_run(1)
    torch.rand(3)
    assert_equal_runs(first, short_run(1))
    torch.manual_seed(1)
    model = fixed_vector_model(8)
    other = train(model, sample_pairs(64), steps=4, batch_size=8, seed=2)
    assert other.losses != first[1].losses


def test_padding_does_not_enter_the_loss():
    model = nn.Module()
    model.logits = nn.Parameter(torch.zeros(len(CHINESE)))
    model.forward = lambda source, lengths, words: model.logits.expand(
        *words.shape, -1
    )
    pairs = sample_pairs(1, clauses=1) + sample_pairs(1, clauses=4)
    log = train(model, iter(pairs), steps=1, batch_size=2, learning_rate=0.1)
    assert math.isclose(log.losses[0], math.log(len(CHINESE)), rel_tol=1e-5)
    assert model.logits[PAD] < 0  # PAD is never the word to write


def test_the_learning_rate_warms_up_and_falls_to_zero(monkeypatch):
    rates = []

    class Watch(torch.optim.Adam):
        def step(self, *args, **kwargs):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "Adam", Watch)
    short_run(0, steps=10, warmup=4, learning_rate=1.0)
    assert rates[:5] == sorted(rates[:5])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert math.isclose(rates[4], 1.0)
    assert 0 < rates[-1] < 0.2


# --- side by side ----------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_side_by_side_equal_runs_in_turn(workers):
    threads = torch.get_num_threads()
    jobs = [lambda seed=seed: short_run(seed) for seed in range(3)]
    jobs.append(torch.get_num_threads)
    *runs, inside = run_parallel(iter(jobs), workers=workers, progress=False)
    assert inside == 1
    assert torch.get_num_threads() == threads
    for run, job in zip(runs, jobs, strict=False):
        assert_equal_runs(run, job())


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_job_is_raised(workers):
    jobs = [lambda: {}["the job's own error"]] * 2
    with pytest.raises(KeyError, match="the job's own error"):
        run_parallel(jobs, workers=workers, progress=False)


@pytest.mark.plain
def test_who_watches_sees_a_bar_that_goes_away(monkeypatch, capfd):
    bars = []

    def spy(steps, **options):
        bars.append(options)
        return steps

    def work():
        train(fixed_vector_model(8), sample_pairs(8), steps=2)
        for workers in (1, 2):
            run_parallel([int, int, int], workers=workers)

    tqdm = types.SimpleNamespace(tqdm=spy)  # need not be installed
    monkeypatch.setitem(sys.modules, "tqdm.auto", tqdm)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    work()
    assert not bars, "nobody watches"
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    work()
    assert [bar["total"] for bar in bars] == [2, 3, 3]
    assert [bar["desc"] for bar in bars] == ["training", "runs", "runs"]
    assert [bar["leave"] for bar in bars] == [False] * 3
