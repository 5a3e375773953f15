"""The toy corpus: what the grammar promises, and how it becomes tensors."""

import random
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
    sample_pairs,
    split_of,
    tokenize_chinese,
    tokenize_english,
)

NOUN_OF = {form: noun for noun in NOUNS for form in noun[:2]}
VERB_OF = {form: verb for verb in VERBS for form in verb[:2]}

each_pair = given(seed=st.integers(0, 10**6), clauses=st.integers(1, 6))


def draw(seed, clauses):
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


@each_pair
def test_a_parser_written_from_the_rules_gives_the_same_chinese(seed, clauses):
    pair = draw(seed, clauses)
    assert Translator(pair.source).sentence() == pair.target
    joints = sum(word in CONJUNCTIONS for word in pair.source)
    assert pair.clauses == clauses == joints + 1


@each_pair
def test_every_chinese_word_is_linked_to_the_word_it_translates(seed, clauses):
    pair = draw(seed, clauses)
    assert [t for t, _ in pair.alignment] == [*range(len(pair.target))]
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
    linked = {source for _, source in pair.alignment}
    unlinked = set(range(len(pair.source))) - linked
    assert {pair.source[place] for place in unlinked} <= {"the"}


# --- splits ----------------------------------------------------------------


def test_splits_share_no_sentence_whatever_the_seed():
    drawn = {
        split: {
            pair.source
            for seed in range(3)
            for pair in sample_pairs(
                800, clauses=(1, 2), split=split, seed=seed
            )
        }
        for split in ("train", "test")
    }
    assert min(map(len, drawn.values())) > 800
    assert not drawn["train"] & drawn["test"]
    rng = random.Random(0)
    splits = [split_of(make_pair(rng, 2).source) for _ in range(3000)]
    assert 0.17 < splits.count("test") / 3000 < 0.23


def test_a_sample_repeats_no_sentence_and_shares_out_clauses():
    pairs = sample_pairs(900, clauses=(1, 3, 4), seed=3)
    assert len({pair.source for pair in pairs}) == 900
    counts = [sum(p.clauses == n for p in pairs) for n in (1, 2, 3, 4)]
    assert counts == [300, 0, 300, 300]
    assert pairs != sample_pairs(900, clauses=(1, 3, 4), seed=4)
    assert sample_pairs(0) == []


def test_the_sentences_of_the_book_are_the_same_everywhere():
    """What the chapters say of their models hangs on these sentences."""
    pairs = sample_pairs(1000, clauses=(1, 2, 3), seed=0)
    text = "\n".join(" ".join(pair.source + pair.target) for pair in pairs)
    assert zlib.crc32(text.encode()) == 3_570_331_309


# --- words and numbers -----------------------------------------------------


@each_pair
def test_text_and_words_and_numbers_are_one(seed, clauses):
    pair = draw(seed, clauses)
    assert tuple(tokenize_english(pair.english)) == pair.source
    assert tuple(tokenize_chinese(pair.chinese)) == pair.target
    assert all(PINYIN[word] and gloss(word) for word in pair.target)
    for vocabulary, words in (
        (ENGLISH, pair.source),
        (CHINESE, pair.target),
    ):
        numbers = vocabulary.encode(words)
        assert UNK not in numbers
        assert tuple(vocabulary.decode(numbers)) == words


def test_a_vocabulary_numbers_unknown_words_alike_and_stops_at_the_end():
    vocabulary = Vocabulary(["a", "b"])
    assert vocabulary.encode(["b", "c", "a"]) == [5, UNK, 4]
    assert vocabulary.decode([BOS, 5, PAD, 4, EOS, 5]) == ["b", "a"]
    assert tokenize_chinese("我喜欢猫") == ["我", "喜欢", "猫"]


# --- batches ---------------------------------------------------------------


def test_a_batch_frames_and_pads_each_sentence():
    pairs = sample_pairs(7, clauses=(1, 3))
    batch = make_batch(iter(pairs))
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


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("seed", [None, 0])
def test_one_pass_visits_every_pair_once(bucketed, seed):
    pairs = sample_pairs(50, clauses=(1, 2))
    batches = [
        batch.source.tolist()
        for batch in iterate_batches(
            iter(pairs), 8, seed=seed, bucketed=bucketed
        )
    ]
    seen = [tuple(ENGLISH.decode(row)) for rows in batches for row in rows]
    wanted = [pair.source for pair in pairs]
    assert sorted(seen) == sorted(wanted)
    assert (seen == wanted) is (seed is None and not bucketed)
    if seed is not None:
        other = next(iterate_batches(pairs, 8, seed=1, bucketed=bucketed))
        assert other.source.tolist() != batches[0]


def test_buckets_leave_little_padding():
    pairs = sample_pairs(1000, clauses=(1, 2, 3))

    def padding(bucketed):
        batches = list(iterate_batches(pairs, 50, seed=0, bucketed=bucketed))
        words = sum(int(batch.source_lengths.sum()) for batch in batches)
        return 1 - words / sum(batch.source.numel() for batch in batches)

    assert padding(True) < 0.1 < 0.4 < padding(False)
