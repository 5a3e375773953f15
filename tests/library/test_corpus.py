"""The toy corpus: what the grammar promises, and how it becomes tensors."""

import itertools
import random
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib.course import corpus
from attention_lib.course.corpus import (
    ADJECTIVES,
    BOS,
    CHINESE,
    CONJUNCTIONS,
    ENGLISH,
    EOS,
    NOUNS,
    NUMBERS,
    PAD,
    PINYIN,
    UNK,
    VERBS,
    Vocabulary,
    gloss,
    iterate_batches,
    make_batch,
    make_pair,
    pad,
    sample_pairs,
    split_of,
    tokenize_chinese,
    tokenize_english,
)

NOUN_OF = {form: noun for noun in NOUNS for form in noun[:2]}
VERB_OF = {form: verb for verb in VERBS for form in verb[:2]}

seeds = st.integers(0, 10**6)
clause_counts = st.integers(1, 6)


def draw(seed, clauses=1):
    return make_pair(random.Random(seed), clauses)


class Translator:
    """A second, independent reading of the grammar: parse, then translate."""

    def __init__(self, words):
        self.words = list(words)

    def take(self):
        return self.words.pop(0)

    def next_is(self, choices):
        return bool(self.words) and self.words[0] in choices

    def phrase(self):
        number = self.take() if self.next_is([*NUMBERS, "the"]) else "the"
        adjective = []
        if self.next_is(ADJECTIVES):
            adjective = [ADJECTIVES[self.take()], "的"]
        noun = NOUN_OF[self.take()]
        relative = self.relative() if self.next_is(["that"]) else []
        counted = []
        if number != "the":
            counted = [NUMBERS[number], noun.measure]
        return [*counted, *relative, *adjective, noun.chinese]

    def verb(self):
        return [VERB_OF[self.take()].chinese]

    def relative(self):
        self.take()
        if self.next_is(VERB_OF):
            return [*self.verb(), *self.phrase(), "的"]
        return [*self.phrase(), *self.verb(), "的"]

    def sentence(self):
        chinese = [*self.phrase(), *self.verb(), *self.phrase()]
        while self.words:
            chinese.append(CONJUNCTIONS[self.take()])
            chinese += [*self.phrase(), *self.verb(), *self.phrase()]
        return tuple(chinese)


def test_the_cat_eats_fish_is_a_sentence_of_the_language():
    rng = random.Random(0)
    pairs = (make_pair(rng) for _ in range(100_000))
    pair = next(p for p in pairs if p.english == "The cat eats fish")
    assert pair.chinese == "猫吃鱼"
    assert pair.alignment == ((0, 1), (1, 2), (2, 3))


@given(seeds, clause_counts)
def test_a_parser_written_from_the_rules_gives_the_same_chinese(seed, count):
    pair = draw(seed, count)
    assert Translator(pair.source).sentence() == pair.target


@given(seeds, clause_counts)
def test_the_same_seed_gives_the_same_pair(seed, count):
    assert draw(seed, count) == draw(seed, count)


@given(seeds, clause_counts)
def test_a_sentence_has_as_many_clauses_as_asked_for(seed, count):
    pair = draw(seed, count)
    joints = sum(word in CONJUNCTIONS for word in pair.source)
    assert pair.clauses == count == joints + 1


@given(seeds, clause_counts)
def test_every_chinese_word_is_linked_to_the_word_it_translates(seed, count):
    pair = draw(seed, count)
    assert [target for target, _ in pair.alignment] == list(
        range(len(pair.target))
    )
    for target, source in pair.alignment:
        chinese, english = pair.target[target], pair.source[source]
        if english in NOUN_OF:
            noun = NOUN_OF[english]
            assert chinese in (noun.chinese, noun.measure)
        elif english in VERB_OF:
            assert chinese == VERB_OF[english].chinese
        elif english in ADJECTIVES:
            assert chinese in (ADJECTIVES[english], "的")
        elif english == "that":
            assert chinese == "的"
        else:
            assert chinese == {**NUMBERS, **CONJUNCTIONS}[english]


@given(seeds, clause_counts)
def test_only_the_article_has_no_link(seed, count):
    pair = draw(seed, count)
    linked = {source for _, source in pair.alignment}
    unlinked = set(range(len(pair.source))) - linked
    assert {pair.source[place] for place in unlinked} <= {"the"}


@given(seeds)
def test_a_relative_clause_stands_before_its_noun(seed):
    pair = draw(seed, 2)
    for place, word in enumerate(pair.source):
        if word == "that":
            of_that = [t for t, s in pair.alignment if s == place]
            of_noun = [t for t, s in pair.alignment if s == place - 1]
            assert of_that[0] < of_noun[-1]


@given(seeds)
def test_a_subject_agrees_with_its_verb(seed):
    source = draw(seed).source
    plural = {noun.plural for noun in NOUNS} - {n.singular for n in NOUNS}
    for noun, verb in itertools.pairwise(source):
        if verb in VERB_OF and noun in NOUN_OF and noun != "fish":
            is_plural = verb == VERB_OF[verb].plural
            if "that" not in source:
                assert (noun in plural) == is_plural


def test_clauses_must_be_at_least_one():
    with pytest.raises(ValueError, match="clauses must be at least 1, got 0"):
        make_pair(random.Random(0), 0)


# --- splits ----------------------------------------------------------------


def test_splits_share_no_sentence_whatever_the_seed():
    train = {
        pair.source
        for seed in range(5)
        for pair in sample_pairs(2000, clauses=(1, 2), seed=seed)
    }
    test = {
        pair.source
        for seed in range(5)
        for pair in sample_pairs(500, clauses=(1, 2), split="test", seed=seed)
    }
    assert train
    assert test
    assert not train & test


def test_a_sample_repeats_no_sentence_and_repeats_itself():
    pairs = sample_pairs(3000, clauses=1, seed=3)
    assert len({pair.source for pair in pairs}) == 3000
    assert pairs == sample_pairs(3000, clauses=1, seed=3)
    assert pairs != sample_pairs(3000, clauses=1, seed=4)


def test_a_sample_shares_out_its_numbers_of_clauses_equally():
    pairs = sample_pairs(300, clauses=(1, 3, 4))
    counts = [sum(p.clauses == n for p in pairs) for n in (1, 2, 3, 4)]
    assert counts == [100, 0, 100, 100]


def test_a_sample_may_be_empty():
    assert sample_pairs(0) == []


def test_the_sentences_of_the_book_are_the_same_everywhere():
    """What the chapters say of their models hangs on these sentences."""
    pairs = sample_pairs(1000, clauses=(1, 2, 3), seed=0)
    text = "\n".join(" ".join(pair.source + pair.target) for pair in pairs)
    assert zlib.crc32(text.encode()) == 3_570_331_309


def test_about_one_sentence_in_five_is_for_testing():
    splits = [split_of(draw(seed, 2).source) for seed in range(3000)]
    assert 0.17 < splits.count("test") / 3000 < 0.23


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="got 'dev'"):
        sample_pairs(1, split="dev")


# --- words and numbers -----------------------------------------------------


@given(seeds, clause_counts)
def test_text_and_words_and_numbers_are_one(seed, count):
    pair = draw(seed, count)
    assert tuple(tokenize_english(pair.english)) == pair.source
    assert tuple(tokenize_chinese(pair.chinese)) == pair.target
    for vocabulary, words in (
        (ENGLISH, pair.source),
        (CHINESE, pair.target),
    ):
        numbers = vocabulary.encode(words)
        assert UNK not in numbers
        assert tuple(vocabulary.decode(numbers)) == words


def test_every_chinese_word_has_pinyin_and_a_meaning():
    for word in CHINESE.words[4:]:
        assert PINYIN[word].strip()
        assert gloss(word).strip()
    assert gloss("吃") == "eat"
    assert gloss("位") == "(measure)"


def test_a_vocabulary_numbers_unknown_words_alike_and_stops_at_the_end():
    vocabulary = Vocabulary(["a", "b"])
    assert len(vocabulary) == 6
    assert vocabulary.encode(["b", "c", "a"]) == [5, UNK, 4]
    assert vocabulary.decode([BOS, 5, PAD, 4, EOS, 5]) == ["b", "a"]


def test_the_vocabularies_of_the_book_name_each_word_once():
    assert corpus._unique(["the", "cats", "the"]) == ["the", "cats"]
    for vocabulary in (ENGLISH, CHINESE):
        assert len(set(vocabulary.words)) == len(vocabulary.words)


@pytest.mark.plain
def test_rows_that_hold_words_are_told_what_is_right():
    with pytest.raises(TypeError, match="rows must hold rows of whole num"):
        pad([[1, 2], ["cats"]])


def test_a_vocabulary_refuses_repeated_words():
    with pytest.raises(ValueError, match="words must not repeat"):
        Vocabulary(["a", "a"])


def test_an_unknown_character_is_a_word_of_its_own():
    assert tokenize_chinese("我喜欢猫") == ["我", "喜欢", "猫"]


# --- batches ---------------------------------------------------------------


def test_a_batch_frames_and_pads_each_sentence():
    pairs = sample_pairs(7, clauses=(1, 3))
    batch = make_batch(pairs)
    for row, pair in enumerate(pairs):
        source = batch.source[row].tolist()
        length = int(batch.source_lengths[row])
        assert source[:length] == [*ENGLISH.encode(pair.source), EOS]
        assert set(source[length:]) <= {PAD}
        target = CHINESE.encode(pair.target)
        length = int(batch.target_lengths[row])
        assert batch.target_input[row].tolist()[:length] == [BOS, *target]
        assert batch.target_output[row].tolist()[:length] == [*target, EOS]
        assert not batch.target_output[row, length:].any()
    assert torch.equal(batch.source_mask[:, 0], batch.source != PAD)


def test_what_a_decoder_reads_is_what_it_writes_one_step_later():
    batch = make_batch(sample_pairs(5, clauses=2))
    last = batch.target_lengths - 1
    for row in range(5):
        read = batch.target_input[row, 1 : last[row] + 1]
        assert torch.equal(read, batch.target_output[row, : last[row]])


def test_an_empty_batch_has_shapes():
    batch = make_batch([])
    assert batch.source.shape == batch.target_input.shape == (0, 0)
    assert batch.source_lengths.shape == (0,)
    assert pad([[]]).shape == (1, 0)


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("seed", [None, 0])
def test_one_pass_visits_every_pair_once(bucketed, seed):
    pairs = sample_pairs(50, clauses=(1, 2))
    seen = [
        tuple(ENGLISH.decode(row))
        for batch in iterate_batches(pairs, 8, seed=seed, bucketed=bucketed)
        for row in batch.source.tolist()
    ]
    assert sorted(seen) == sorted(pair.source for pair in pairs)


def test_the_seed_decides_the_order_of_batches():
    pairs = sample_pairs(100)

    def order(seed):
        batches = iterate_batches(pairs, 8, seed=seed)
        return [batch.source.tolist() for batch in batches]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_without_seed_and_buckets_the_order_is_kept():
    pairs = sample_pairs(10, clauses=(1, 2))
    rows = [
        tuple(ENGLISH.decode(row))
        for batch in iterate_batches(pairs, 3, bucketed=False)
        for row in batch.source.tolist()
    ]
    assert rows == [pair.source for pair in pairs]


def test_buckets_leave_little_padding():
    pairs = sample_pairs(1000, clauses=(1, 2, 3))

    def padding(bucketed):
        batches = list(iterate_batches(pairs, 50, seed=0, bucketed=bucketed))
        words = sum(int(batch.source_lengths.sum()) for batch in batches)
        return 1 - words / sum(batch.source.numel() for batch in batches)

    assert padding(True) < 0.1 < 0.4 < padding(False)


@pytest.mark.plain
def test_an_iterator_is_read_once_and_whole():
    pairs = sample_pairs(6)
    expected = make_batch(pairs)
    assert torch.equal(make_batch(iter(pairs)).source, expected.source)
    batches = list(iterate_batches(iter(pairs), 6, bucketed=False))
    assert torch.equal(batches[0].source, expected.source)
    rows = (iter(row) for row in [[1, 2], [3]])
    assert pad(rows).tolist() == [[1, 2], [3, PAD]]
