"""Encoder, decoders, training, search and scores."""

import itertools
import math
import os
import random
import subprocess
import sys
import time
import types
from importlib.machinery import ModuleSpec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention_lib.course.corpus import (
    BOS,
    CHINESE,
    ENGLISH,
    EOS,
    PAD,
    make_batch,
    make_pair,
    sample_pairs,
)
from attention_lib.course.evaluation import (
    evaluate,
    evaluate_by_clauses,
    score_translations,
)
from attention_lib.course.search import beam_search, greedy_decode, translate
from attention_lib.course.training import run_parallel, train, train_run
from attention_lib.seq2seq import (
    Decoder,
    Encoder,
    FixedVectorDecoder,
    Memory,
    Seq2Seq,
    fixed_vector_model,
    index_batch,
)

lengths_of_batch = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def random_source(lengths, words=9):
    rows = [
        torch.randint(3, words, (length,)).tolist() + [PAD] * 7
        for length in lengths
    ]
    width = max(lengths)
    return torch.tensor([row[:width] for row in rows]), torch.tensor(lengths)


def small_model(words=6, *, bidirectional=False):
    """A random model that decides clearly, for searches."""
    torch.manual_seed(words)
    model = Seq2Seq(
        Encoder(9, 4, 5, bidirectional=bidirectional),
        FixedVectorDecoder(words, 3, 7, context_dim=5),
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


# --- encoder ---------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
@given(lengths=lengths_of_batch)
def test_a_padded_batch_gives_what_single_sentences_give(
    bidirectional, lengths
):
    encoder = Encoder(9, 4, 5, bidirectional=bidirectional).double()
    source, sizes = random_source(lengths)
    together = encoder(source, sizes)
    assert together.states.shape[-1] == encoder.state_dim
    for row, length in enumerate(lengths):
        alone = encoder(source[row : row + 1, :length], sizes[row : row + 1])
        torch.testing.assert_close(
            together.states[row, :length], alone.states[0]
        )
        torch.testing.assert_close(together.final[row], alone.final[0])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_of_a_padded_batch_are_those_of_single_sentences(
    bidirectional,
):
    model = small_model(bidirectional=bidirectional)
    source, sizes = random_source([2, 6, 4])
    target = torch.randint(3, 6, (3, 5))

    def gradients(rows):
        model.zero_grad()
        for row in rows:
            longest = int(sizes[row].max())
            model(
                source[row, :longest], sizes[row], target[row]
            ).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    together = gradients([slice(0, 3)])
    alone = gradients([slice(i, i + 1) for i in range(3)])
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_what_stands_in_the_padding_has_no_influence(bidirectional):
    encoder = Encoder(9, 4, 5, bidirectional=bidirectional)
    source, sizes = random_source([2, 5])
    other = source.clone()
    other[0, 2:] = 8
    for ours, theirs in zip(
        encoder(source, sizes), encoder(other, sizes), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_memory_marks_words_and_holds_zeros_at_padding():
    memory = Encoder(9, 4, 5)(*random_source([2, 5, 1]))
    assert memory.mask.sum(-1).flatten().tolist() == [2, 5, 1]
    assert not memory.states[~memory.mask[:, 0]].any()


def test_the_final_vector_is_the_state_after_the_last_word():
    source, sizes = random_source([2, 5, 1])
    memory = Encoder(9, 4, 5)(source, sizes)
    last = memory.states[torch.arange(3), sizes - 1]
    assert torch.equal(memory.final, last)


def test_both_directions_end_in_one_vector_of_the_width_asked_for():
    encoder = Encoder(9, 4, 5, bidirectional=True)
    memory = encoder(*random_source([2, 4]))
    assert memory.states.shape == (2, 4, encoder.state_dim) == (2, 4, 10)
    assert memory.final.shape == (2, encoder.final_dim) == (2, 5)


# --- decoders --------------------------------------------------------------


def test_reading_at_once_equals_reading_word_by_word():
    model = small_model()
    memory = model.encoder(*random_source([2, 6, 1]))
    target = torch.randint(0, 6, (3, 4))
    torch.testing.assert_close(
        model.decoder(target, memory),
        Decoder.forward(model.decoder, target, memory),
    )


def test_a_word_changes_no_logits_before_it():
    model = small_model()
    source, sizes = random_source([3, 5])
    target = torch.randint(0, 6, (2, 6))
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 6
    before, after = (model(source, sizes, t) for t in (target, changed))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_the_fixed_vector_reaches_every_step():
    model = small_model()
    memory = model.encoder(*random_source([3]))
    memory = memory._replace(final=memory.final.detach().requires_grad_())
    logits = model.decoder(torch.randint(0, 6, (1, 5)), memory)
    for step in range(5):
        (gradient,) = torch.autograd.grad(
            logits[:, step].pow(2).sum(), memory.final, retain_graph=True
        )
        assert gradient.abs().min() > 0


def test_the_loss_has_the_gradient_it_should():
    model = small_model()
    source, sizes = random_source([3, 2])
    target = torch.randint(0, 6, (2, 3))
    weight = model.decoder.bridge.weight.detach().clone().requires_grad_()

    def logits(weight):
        parameters = {"decoder.bridge.weight": weight}
        return torch.func.functional_call(
            model, parameters, (source, sizes, target)
        )

    assert torch.autograd.gradcheck(logits, weight)


@pytest.mark.plain
def test_a_memory_without_a_vector_is_refused():
    memory = Memory(torch.zeros(1, 2, 5), torch.ones(1, 1, 2).bool(), None)
    with pytest.raises(ValueError, match=r"memory\.final is None"):
        FixedVectorDecoder(6, 3, 5).start(memory)


@pytest.mark.plain
def test_a_decoder_must_define_start_and_step():
    for call in (
        lambda: Decoder().start(None),
        lambda: Decoder().step(torch.zeros(1).long(), None),
    ):
        with pytest.raises(NotImplementedError):
            call()


def test_index_batch_follows_any_nest():
    state = {
        "pair": (torch.arange(3), None),
        "memory": Memory(
            torch.arange(6.0).reshape(3, 2, 1),
            torch.ones(3, 1, 2).bool(),
            torch.arange(3.0)[:, None],
        ),
        "list": [torch.arange(3) * 10],
    }
    picked = index_batch(state, torch.tensor([2, 2, 0, 1]))
    assert picked["pair"][0].tolist() == [2, 2, 0, 1]
    assert picked["pair"][1] is None
    assert isinstance(picked["memory"], Memory)
    assert picked["memory"].final.flatten().tolist() == [2.0, 2.0, 0.0, 1.0]
    assert picked["list"][0].tolist() == [20, 20, 0, 10]


# --- search ----------------------------------------------------------------


def probabilities_of(model, source, sizes, tokens):
    """The log-probability of one translation, by teacher forcing."""
    target = torch.tensor([[BOS, *tokens[:-1]]])
    log_probs = model(source, sizes, target).log_softmax(-1)[0]
    return float(sum(log_probs[t, w] for t, w in enumerate(tokens)).detach())


def all_sentences(words, longest):
    """Everything a decoder can say: ended by EOS, or cut at the limit."""
    others = [w for w in range(words) if w != EOS]
    for length in range(longest):
        for body in itertools.product(others, repeat=length):
            yield [*body, EOS]
    yield from map(list, itertools.product(others, repeat=longest))


@pytest.mark.parametrize("length_power", [0.0, 0.7, 1.0])
def test_a_beam_of_everything_finds_the_best_sentence(length_power):
    model = small_model(words=4)
    source, sizes = random_source([3, 5])
    found = beam_search(
        model,
        source,
        sizes,
        beam_size=4**3,
        max_length=3,
        length_power=length_power,
    )
    for row in range(2):
        one = source[row : row + 1, : sizes[row]], sizes[row : row + 1]
        best = max(
            all_sentences(4, 3),
            key=lambda s: (
                probabilities_of(model, *one, s) / len(s) ** length_power
            ),
        )
        assert found[row][0].tokens == best


@given(lengths=lengths_of_batch)
@settings(max_examples=20)
def test_a_beam_of_one_is_greedy(lengths):
    model = small_model()
    source, sizes = random_source(lengths)
    greedy = greedy_decode(model, source, sizes, max_length=9)
    beams = beam_search(model, source, sizes, beam_size=1, max_length=9)
    assert [b[0].tokens for b in beams] == greedy


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_beams_of_a_batch_are_those_of_single_sentences(beam_size):
    model = small_model()
    source, sizes = random_source([2, 7, 4])
    together = beam_search(
        model, source, sizes, beam_size=beam_size, max_length=8
    )
    for row in range(3):
        (alone,) = beam_search(
            model,
            source[row : row + 1, : sizes[row]],
            sizes[row : row + 1],
            beam_size=beam_size,
            max_length=8,
        )
        assert [h.tokens for h in together[row]] == [h.tokens for h in alone]


def test_each_hypothesis_tells_its_own_probability():
    model = small_model()
    source, sizes = random_source([4])
    (beams,) = beam_search(
        model, source, sizes, beam_size=4, max_length=6, length_power=1.0
    )
    assert [h.score for h in beams] == sorted(
        (h.score for h in beams), reverse=True
    )
    for h in beams:
        true = probabilities_of(model, source, sizes, h.tokens)
        assert math.isclose(h.log_probability, true, abs_tol=1e-5)
        assert math.isclose(h.score, true / len(h.tokens), abs_tol=1e-5)


def test_a_sentence_ends_once_and_is_not_padded():
    model = small_model()
    source, sizes = random_source([2, 7, 4, 1])
    rows = greedy_decode(model, source, sizes, max_length=30)
    beams = beam_search(model, source, sizes, beam_size=3, max_length=30)
    for tokens in [*rows, *(h.tokens for b in beams for h in b)]:
        assert EOS not in tokens[:-1]
        assert len(tokens) <= 30


class Fork(Decoder):
    """Greedy decoding begins with 3; the better sentence begins with 4."""

    def start(self, memory):
        return None

    def step(self, tokens, state):
        rows = {
            BOS: [0.0, 0.0, 0.0, 0.6, 0.4],
            3: [0.0, 0.0, 0.4, 0.3, 0.3],
        }
        end = [0.0, 0.0, 1.0, 0.0, 0.0]
        return torch.tensor(
            [rows.get(int(t), end) for t in tokens]
        ).log(), None


def test_a_wider_beam_finds_what_greedy_decoding_misses():
    model = Seq2Seq(Encoder(9, 4, 5), Fork())
    source, sizes = random_source([2, 3])
    assert greedy_decode(model, source, sizes) == [[3, EOS]] * 2
    for beams in beam_search(model, source, sizes, beam_size=2):
        assert beams[0].tokens == [4, EOS]
        assert math.isclose(
            beams[0].log_probability, math.log(0.4), rel_tol=1e-5
        )


def test_length_power_moves_the_choice_to_longer_sentences():
    model = Seq2Seq(Encoder(9, 4, 5), Fork())
    source, sizes = random_source([2])
    best = {}
    for power in (0.0, 2.0):
        (beams,) = beam_search(
            model, source, sizes, beam_size=6, length_power=power
        )
        best[power] = len(beams[0].tokens)
    assert best[0.0] < best[2.0]


# --- scores ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("translation", "exact", "token"),
    [
        ([4, 5, EOS], 1.0, 1.0),
        ([4, 6, EOS], 0.0, 2 / 3),
        ([5, EOS], 0.0, 0.0),
        ([4, 5, EOS, 7], 0.0, 1.0),
        ([4, 5], 0.0, 2 / 3),
        ([9, 4, 5, EOS], 0.0, 0.0),
        ([], 0.0, 0.0),
    ],
)
def test_scores_compare_place_by_place(translation, exact, token):
    scores = score_translations([translation], [[4, 5, EOS]])
    assert scores == (exact, token, 1)


def test_token_accuracy_counts_words_not_sentences():
    scores = score_translations(
        [[4, EOS], [9, 9, 9, 9, EOS]], [[4, EOS], [5, 5, 5, 5, EOS]]
    )
    assert scores == (0.5, 3 / 7, 2)


def test_no_sentences_score_nothing():
    assert score_translations([], []) == (0.0, 0.0, 0)


class Oracle(nn.Module):
    """An encoder that knows the answers, for the decoder below."""

    def __init__(self, pairs):
        super().__init__()
        self.known = {
            tuple(ENGLISH.encode(p.source)): [*CHINESE.encode(p.target), EOS]
            for p in pairs
        }

    def forward(self, source, lengths):
        rows = [
            self.known[tuple(row[: n - 1])]
            for row, n in zip(source.tolist(), lengths.tolist(), strict=True)
        ]
        width = max(map(len, rows))
        return torch.tensor([r + [EOS] * (width - len(r)) for r in rows])


class Recite(Decoder):
    def start(self, memory):
        return memory, torch.zeros(len(memory), dtype=torch.long)

    def step(self, tokens, state):
        answer, place = state
        at = place.clamp(max=answer.shape[1] - 1)[:, None]
        word = answer.gather(1, at)
        logits = torch.full((len(tokens), len(CHINESE)), -9.0)
        return logits.scatter(1, word, 9.0), (answer, place + 1)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_a_perfect_translator_scores_one(beam_size, batch_size):
    pairs = sample_pairs(15, clauses=(1, 3))
    model = Seq2Seq(Oracle(pairs), Recite())
    scores = evaluate(model, pairs, beam_size=beam_size, batch_size=batch_size)
    assert scores == (1.0, 1.0, 15)


def test_the_batch_size_does_not_change_a_score():
    model = fixed_vector_model(16)
    pairs = sample_pairs(30, clauses=(1, 2))
    scores = {evaluate(model, pairs, batch_size=n) for n in (1, 8, 100)}
    assert len(scores) == 1


def test_evaluation_by_clauses_uses_test_sentences_of_each_length():
    scores = evaluate_by_clauses(
        fixed_vector_model(8), clauses=(1, 2), count=5
    )
    assert [scores[n].sentences for n in (1, 2)] == [5, 5]


def test_evaluation_by_clauses_takes_two_hundred_sentences_of_each():
    scores = evaluate_by_clauses(fixed_vector_model(2), clauses=(1,))
    assert scores[1].sentences == 200


def test_a_beam_is_as_wide_as_asked_for(monkeypatch):
    widths = []

    def spy(*given, beam_size, **options):
        widths.append(beam_size)
        return beam_search(*given, beam_size=beam_size, **options)

    monkeypatch.setattr("attention_lib.course.search.beam_search", spy)
    evaluate(fixed_vector_model(4), sample_pairs(2), beam_size=3)
    assert widths == [3]


# --- training --------------------------------------------------------------


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def short_run(seed, **changes):
    budget = {"steps": 4, "batch_size": 8, "progress": False, **changes}
    pairs = sample_pairs(64)
    return train_run(lambda: fixed_vector_model(8), pairs, seed=seed, **budget)


def test_the_seed_decides_a_run_altogether():
    first, log = short_run(1)
    torch.rand(3)
    second, again = short_run(1)
    other, _ = short_run(2)
    assert log.losses == again.losses
    for ours, same in zip(weights(first), weights(second), strict=True):
        assert torch.equal(ours, same)
    assert not torch.equal(weights(first)[0], weights(other)[0])


def test_training_lowers_the_loss_and_ends_in_evaluation_mode():
    model, log = short_run(0, steps=60, learning_rate=3e-2)
    assert len(log.losses) == 60
    assert sum(log.losses[-9:]) < 0.7 * sum(log.losses[:9])
    assert log.seconds > 0
    assert not model.training


def test_padding_does_not_enter_the_loss():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(len(CHINESE)))

        def forward(self, source, lengths, target_input):
            return self.logits.expand(*target_input.shape, -1)

    pairs = sample_pairs(1, clauses=1) + sample_pairs(1, clauses=4)
    model = Fixed()
    log = train(
        model, pairs, steps=1, batch_size=2, learning_rate=0.1, progress=False
    )
    assert math.isclose(log.losses[0], math.log(len(CHINESE)), rel_tol=1e-5)
    assert model.logits[PAD] < 0  # PAD is never the word to write


def test_the_learning_rate_warms_up_and_falls_to_zero():
    rates = []

    class Watch(torch.optim.Adam):
        def step(self, *args, **kwargs):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **kwargs)

    original = torch.optim.Adam
    torch.optim.Adam = Watch
    try:
        short_run(0, steps=10, warmup=4, learning_rate=1.0)
    finally:
        torch.optim.Adam = original
    assert rates[:4] == sorted(rates[:4])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert math.isclose(rates[4], 1.0)
    assert 0 < rates[-1] < 0.2


def test_a_model_can_learn_a_handful_of_sentences_by_heart():
    pairs = [make_pair(random.Random(seed)) for seed in range(6)]
    model, _ = train_run(
        lambda: fixed_vector_model(32),
        pairs,
        seed=0,
        steps=120,
        batch_size=6,
        learning_rate=1e-2,
        progress=False,
    )
    assert evaluate(model, pairs).exact == 1.0
    assert translate(model, pairs[0].english) == pairs[0].chinese


# --- side by side ----------------------------------------------------------


def test_the_seed_of_a_run_decides_start_and_order():
    pairs = sample_pairs(64)
    budget = {"steps": 4, "batch_size": 8, "progress": False}
    torch.manual_seed(3)
    model = fixed_vector_model(8)
    by_hand = train(model, pairs, seed=3, **budget).losses
    assert short_run(3)[1].losses == by_hand
    torch.manual_seed(3)
    other = train(fixed_vector_model(8), pairs, seed=4, **budget).losses
    assert other != by_hand


def test_runs_side_by_side_equal_runs_in_turn():
    jobs = [lambda seed=seed: short_run(seed) for seed in range(3)]
    for (model, log), job in zip(
        run_parallel(jobs, progress=False), jobs, strict=True
    ):
        alone, alone_log = job()
        assert log.losses == alone_log.losses
        for ours, theirs in zip(weights(model), weights(alone), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_keep_the_order_of_jobs(workers):
    jobs = [lambda n=n: n * n for n in range(5)]
    results = run_parallel(jobs, workers=workers, progress=False)
    assert results == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("workers", [1, 2])
def test_each_job_has_one_thread_and_leaves_the_others_alone(workers):
    before = torch.get_num_threads()
    jobs = [torch.get_num_threads] * 2
    assert run_parallel(jobs, workers=workers, progress=False) == [1, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("workers", [2, 3])
def test_as_many_jobs_run_at_a_time_as_asked_for(workers):
    def job():
        time.sleep(0.3)
        return os.getpid()

    processes = run_parallel([job] * 4, workers=workers, progress=False)
    assert len(set(processes)) == workers


def fail():
    raise KeyError("the job's own error")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_job_is_raised(workers):
    with pytest.raises(KeyError, match="the job's own error"):
        run_parallel([fail, fail], workers=workers, progress=False)


def test_importing_the_module_does_not_import_matplotlib():
    code = (
        "import sys, attention_lib.seq2seq, attention_lib.course.figures;"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.plain
def test_nothing_is_printed_where_nobody_watches(capfd):
    train(fixed_vector_model(8), sample_pairs(8), steps=2)
    run_parallel([lambda: 1, lambda: 2])
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.plain
def test_who_watches_sees_a_bar_that_goes_away(monkeypatch):
    bars = []

    def spy(steps, **options):
        bars.append(options)
        return steps

    for name in ("tqdm", "tqdm.auto"):  # which need not be installed
        module = types.ModuleType(name)
        module.tqdm, module.__spec__ = spy, ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    train(fixed_vector_model(8), sample_pairs(8), steps=2)
    for workers in (1, 2):
        run_parallel([int, int, int], workers=workers)
    assert [bar["total"] for bar in bars] == [2, 3, 3]
    assert [bar["desc"] for bar in bars] == ["training", "runs", "runs"]
    assert [bar["leave"] for bar in bars] == [False] * 3


def test_a_batch_of_one_word_sentences_works():
    batch = make_batch(sample_pairs(1))
    model = fixed_vector_model(8)
    lengths = torch.tensor([1])
    assert len(greedy_decode(model, batch.source[:, :1], lengths)) == 1


@pytest.mark.plain
def test_iterators_are_read_once_and_whole():
    model, pairs = fixed_vector_model(8), sample_pairs(6)
    assert evaluate(model, iter(pairs)).sentences == 6
    log = train(model, iter(pairs), steps=2, progress=False)
    assert len(log.losses) == 2
    assert run_parallel(iter([int, float]), progress=False) == [0, 0.0]
