"""The toy English-Chinese corpus that runs through the book.

A small grammar builds an English sentence and its Chinese translation side by
side, and remembers which English word each Chinese word comes from.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attention_lib._checks import check_sizes

__all__ = [
    "ADJECTIVES",
    "BOS",
    "CHINESE",
    "CONJUNCTIONS",
    "ENGLISH",
    "EOS",
    "NOUNS",
    "NUMBERS",
    "PAD",
    "PINYIN",
    "UNK",
    "VERBS",
    "Batch",
    "Noun",
    "Pair",
    "Verb",
    "Vocabulary",
    "gloss",
    "iterate_batches",
    "make_batch",
    "make_pair",
    "pad",
    "sample_pairs",
    "split_of",
    "tokenize_chinese",
    "tokenize_english",
]


class Noun(NamedTuple):
    """One noun of the grammar: two English forms, Chinese, measure word."""

    singular: str
    plural: str
    chinese: str
    measure: str
    kind: str


class Verb(NamedTuple):
    """One verb of the grammar and the kinds of noun that may go with it."""

    plural: str
    singular: str
    chinese: str
    subjects: str
    objects: str


#: The nouns of the grammar.
NOUNS = [
    Noun("cat", "cats", "猫", "只", "animal"),
    Noun("dog", "dogs", "狗", "只", "animal"),
    Noun("bird", "birds", "鸟", "只", "animal"),
    Noun("horse", "horses", "马", "匹", "animal"),
    Noun("child", "children", "孩子", "个", "person"),
    Noun("teacher", "teachers", "老师", "位", "person"),
    Noun("fish", "fish", "鱼", "条", "food"),
    Noun("pear", "pears", "梨", "个", "food"),
    Noun("book", "books", "书", "本", "thing"),
    Noun("flower", "flowers", "花", "朵", "thing"),
]


#: The verbs of the grammar.
VERBS = [
    Verb("eat", "eats", "吃", "animal person", "food"),
    Verb("chase", "chases", "追", "animal person", "animal"),
    Verb("see", "sees", "看见", "animal person", "animal person food thing"),
    Verb("like", "likes", "喜欢", "animal person", "animal person food thing"),
    Verb("buy", "buys", "买", "person", "animal food thing"),
    Verb("draw", "draws", "画", "person", "animal person food thing"),
]


#: Each English adjective with the Chinese one; the last two are for the
#: living only.
ADJECTIVES = {
    "big": "大",
    "small": "小",
    "white": "白色",
    "pretty": "漂亮",
    "clever": "聪明",
    "quiet": "安静",
}


#: Each English number with the Chinese one.
NUMBERS = {"a": "一", "two": "两", "three": "三"}


#: Each English conjunction with the Chinese one.
CONJUNCTIONS = {"and": "而且", "but": "但是", "so": "所以", "because": "因为"}


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, and the links between their words.

    ``alignment`` has, for each Chinese word, its index and the index of the
    English word that it comes from; ``clauses`` is the number of main
    clauses.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    clauses: int

    @property
    def english(self) -> str:
        """The English sentence as one string."""
        return " ".join(self.source).capitalize()

    @property
    def chinese(self) -> str:
        """The Chinese sentence as one string, written without spaces."""
        return "".join(self.target)


class _Word:
    """One English word at one place of one sentence."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Phrase(NamedTuple):
    """English words, and Chinese words each with its English origin."""

    english: list[_Word]
    chinese: list[tuple[str, _Word]]


def _noun_phrase(
    rng: random.Random, kinds: str, relative: bool
) -> tuple[_Phrase, bool]:
    """A noun with all that hangs on it, and whether it is plural."""
    noun = rng.choice([n for n in NOUNS if n.kind in kinds.split()])
    number = rng.choices(["the", "", *NUMBERS], [9, 2, 3, 3, 3])[0]
    plural = number in ("", "two", "three") or (
        number == "the" and rng.random() < 0.5
    )
    head = _Word(noun.plural if plural else noun.singular)
    before, after, chinese = [], [], []
    if number:
        before.append(_Word(number))
    if number in NUMBERS:  # two cats -> 两只猫
        chinese += [(NUMBERS[number], before[0]), (noun.measure, head)]
    if relative and rng.random() < 0.15:  # moves in front of the noun
        clause = _relative_clause(rng, noun, plural)
        after += clause.english
        chinese += clause.chinese
    if rng.random() < 0.2:  # the big cat -> 大的猫
        choice = list(ADJECTIVES)
        if noun.kind in ("food", "thing"):
            choice = choice[:4]
        adjective = _Word(rng.choice(choice))
        before.append(adjective)
        chinese += [(ADJECTIVES[adjective.text], adjective), ("的", adjective)]
    chinese.append((noun.chinese, head))
    return _Phrase([*before, head, *after], chinese), plural


def _verb(verb: Verb, plural: bool) -> _Word:
    return _Word(verb.plural if plural else verb.singular)


def _relative_clause(rng: random.Random, noun: Noun, plural: bool) -> _Phrase:
    """``that eats fish`` -> 吃鱼的, or ``that the cat eats`` -> 猫吃的."""
    that = _Word("that")
    as_subject = [v for v in VERBS if noun.kind in v.subjects.split()]
    as_object = [v for v in VERBS if noun.kind in v.objects.split()]
    if as_subject and rng.random() < 0.5:
        verb = rng.choice(as_subject)
        word = _verb(verb, plural)
        other, _ = _noun_phrase(rng, verb.objects, relative=False)
        english = [that, word, *other.english]
        chinese = [(verb.chinese, word), *other.chinese, ("的", that)]
    else:
        verb = rng.choice(as_object)
        other, others = _noun_phrase(rng, verb.subjects, relative=False)
        word = _verb(verb, others)
        english = [that, *other.english, word]
        chinese = [*other.chinese, (verb.chinese, word), ("的", that)]
    return _Phrase(english, chinese)


def _clause(rng: random.Random) -> _Phrase:
    """Subject, verb, object: the same order in both languages."""
    verb = rng.choice(VERBS)
    subject, plural = _noun_phrase(rng, verb.subjects, relative=True)
    word = _verb(verb, plural)
    target, _ = _noun_phrase(rng, verb.objects, relative=True)
    return _Phrase(
        [*subject.english, word, *target.english],
        [*subject.chinese, (verb.chinese, word), *target.chinese],
    )


def make_pair(rng: random.Random, clauses: int = 1) -> Pair:
    """Draw one sentence with its translation and alignment.

    The same state of ``rng`` gives the same pair; ``clauses`` main clauses,
    at least 1, are joined with conjunctions.

    >>> make_pair(random.Random(5)).clauses
    1
    """
    check_sizes(clauses=clauses)
    english, chinese = _clause(rng)
    for _ in range(clauses - 1):
        conjunction = _Word(rng.choice(list(CONJUNCTIONS)))
        clause = _clause(rng)
        english += [conjunction, *clause.english]
        chinese += [(CONJUNCTIONS[conjunction.text], conjunction)]
        chinese += clause.chinese
    position = {id(word): index for index, word in enumerate(english)}
    return Pair(
        source=tuple(word.text for word in english),
        target=tuple(text for text, _ in chinese),
        alignment=tuple(
            (index, position[id(origin)])
            for index, (_, origin) in enumerate(chinese)
        ),
        clauses=clauses,
    )


#: The pronunciation of every Chinese word.
PINYIN = {
    "猫": "māo",
    "狗": "gǒu",
    "鸟": "niǎo",
    "马": "mǎ",
    "孩子": "háizi",
    "老师": "lǎoshī",
    "鱼": "yú",
    "梨": "lí",
    "书": "shū",
    "花": "huā",
    "吃": "chī",
    "追": "zhuī",
    "看见": "kànjiàn",
    "喜欢": "xǐhuan",
    "买": "mǎi",
    "画": "huà",
    "大": "dà",
    "小": "xiǎo",
    "白色": "báisè",
    "漂亮": "piàoliang",
    "聪明": "cōngming",
    "安静": "ānjìng",
    "一": "yī",
    "两": "liǎng",
    "三": "sān",
    "只": "zhī",
    "匹": "pǐ",
    "个": "gè",
    "位": "wèi",
    "条": "tiáo",
    "本": "běn",
    "朵": "duǒ",
    "的": "de",
    "而且": "érqiě",
    "但是": "dànshì",
    "所以": "suǒyǐ",
    "因为": "yīnwèi",
}


_GLOSSES = {
    **{noun.measure: "(measure)" for noun in NOUNS},
    **{noun.chinese: noun.singular for noun in NOUNS},
    **{verb.chinese: verb.plural for verb in VERBS},
    **{chinese: english for english, chinese in ADJECTIVES.items()},
    **{chinese: english for english, chinese in NUMBERS.items()},
    **{chinese: english for english, chinese in CONJUNCTIONS.items()},
    "一": "one",
    "的": "(de)",
}


def gloss(word: str) -> str:
    """Say in English what a Chinese word of the grammar means.

    >>> gloss("猫"), gloss("只")
    ('cat', '(measure)')
    """
    return _GLOSSES[word]


def _words(name: str, words: Iterable[str]) -> list[str]:
    """Return words in a list; refuse text, which would fall into letters."""
    if isinstance(words, str):
        raise TypeError(f"{name} must be a sequence of words, got {words!r}")
    return list(words)


def split_of(source: Sequence[str]) -> str:
    """Say to which split a sentence belongs: ``"train"`` or ``"test"``.

    A checksum of the words decides, so no seed, count or order of drawing can
    ever put one sentence into both. One sentence in five is for testing.

    >>> split_of("the cat eats fish".split())
    'train'
    """
    checksum = zlib.crc32(" ".join(_words("source", source)).encode())
    return "test" if checksum % 5 == 0 else "train"


def sample_pairs(
    count: int,
    *,
    clauses: int | Sequence[int] = 1,
    split: str = "train",
    seed: int = 0,
) -> list[Pair]:
    """Draw ``count`` pairs of one split, no sentence twice.

    ``clauses`` is the number of main clauses of every sentence, or the
    numbers to draw from, each equally often. The splits, ``"train"`` and
    ``"test"``, never share a sentence; anything else is a ValueError. The
    same seed gives the same pairs in the same order.

    >>> pairs = sample_pairs(3, clauses=2, split="test")
    >>> [pair.clauses for pair in pairs]
    [2, 2, 2]
    """
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test", got {split!r}')
    lengths = [clauses] if isinstance(clauses, int) else list(clauses)
    check_sizes(clauses=min(lengths, default=0))
    rng = random.Random(f"{split} {lengths} {seed}")
    pairs: dict[tuple[str, ...], Pair] = {}
    while len(pairs) < count:
        pair = make_pair(rng, lengths[len(pairs) % len(lengths)])
        if split_of(pair.source) == split:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


#: The number of the filler after a sentence.
PAD = 0


#: The number of the mark at which a decoder begins.
BOS = 1


#: The number of the mark at the end of a sentence.
EOS = 2


#: The number of any word that is not in the vocabulary.
UNK = 3


class Vocabulary:
    """The words of one language and their numbers.

    The first four numbers are ``PAD`` (0, filler), ``BOS`` (1, begin), ``EOS``
    (2, end) and ``UNK`` (3, any word that is not in the list). Raises
    ValueError for words that repeat.

    >>> vocabulary = Vocabulary(["cat", "fish"])
    >>> vocabulary.encode(["fish", "swims"])
    [5, 3]
    >>> vocabulary.decode([5, 4, 2, 0, 0])
    ['fish', 'cat']
    """

    def __init__(self, words: Iterable[str]) -> None:
        marks = ["<pad>", "<bos>", "<eos>", "<unk>"]
        self.words = [*marks, *_words("words", words)]
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise ValueError("words must not repeat")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Turn words into numbers."""
        return [self.index.get(word, UNK) for word in _words("words", words)]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Turn numbers into words, up to the first ``EOS``."""
        words = []
        for number in numbers:
            if number == EOS:
                break
            if number not in range(len(self)):
                raise ValueError(
                    f"numbers must lie between 0 and {len(self) - 1}, got "
                    f"{number!r}"
                )
            if number not in (PAD, BOS):
                words.append(self.words[number])
        return words


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


#: The English words, numbered.
ENGLISH = Vocabulary(
    _unique(
        [
            "the",
            *NUMBERS,
            "that",
            *CONJUNCTIONS,
            *ADJECTIVES,
            *(form for noun in NOUNS for form in (noun[0], noun[1])),
            *(form for verb in VERBS for form in (verb[0], verb[1])),
        ]
    )
)


#: The Chinese words, numbered.
CHINESE = Vocabulary(PINYIN)


def tokenize_english(text: str) -> list[str]:
    """Split an English sentence into lower-case words.

    >>> tokenize_english("The cat eats fish.")
    ['the', 'cat', 'eats', 'fish']
    """
    return text.lower().replace(".", " ").replace(",", " ").split()


def tokenize_chinese(text: str) -> list[str]:
    """Split a Chinese sentence into words, the longest match first.

    A character that begins no word of the vocabulary becomes a word by itself.

    >>> tokenize_chinese("猫喜欢鱼")
    ['猫', '喜欢', '鱼']
    """
    words = []
    while text:
        long = text[:2]
        words.append(long if long in CHINESE.index else text[0])
        text = text[len(words[-1]) :]
    return words


@dataclass
class Batch:
    """Sentences of different lengths in tensors of one shape.

    ``source`` holds English words and ``EOS``; ``target_input``, ``BOS`` and
    Chinese words, is what the decoder reads; ``target_output``, Chinese words
    and ``EOS``, is what it has to say. Padding follows; the lengths count
    ``EOS``.
    """

    source: Int[Tensor, "B Ts"]
    source_lengths: Int[Tensor, " B"]
    target_input: Int[Tensor, "B Tt"]
    target_output: Int[Tensor, "B Tt"]
    target_lengths: Int[Tensor, " B"]

    @property
    def source_mask(self) -> Bool[Tensor, "B 1 Ts"]:
        """True at the words of each source, False at its padding."""
        positions = torch.arange(self.source.shape[1])
        return (positions < self.source_lengths[:, None])[:, None, :]


def pad(rows: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
    """Fill rows of numbers with ``PAD`` up to the longest.

    >>> pad([[5, 6, 2], [7, 2]]).tolist()
    [[5, 6, 2], [7, 2, 0]]
    """
    width = max(map(len, rows), default=0)
    padded = [[*row, *[PAD] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)


def make_batch(pairs: Iterable[Pair]) -> Batch:
    """Number, frame and pad some sentence pairs.

    >>> batch = make_batch(sample_pairs(3))
    >>> batch.source.shape[0], batch.target_input[:, 0].tolist()
    (3, [1, 1, 1])
    """
    pairs = list(pairs)
    sources = [[*ENGLISH.encode(pair.source), EOS] for pair in pairs]
    targets = [CHINESE.encode(pair.target) for pair in pairs]
    return Batch(
        source=pad(sources),
        source_lengths=torch.tensor([len(s) for s in sources]).long(),
        target_input=pad([[BOS, *target] for target in targets]),
        target_output=pad([[*target, EOS] for target in targets]),
        target_lengths=torch.tensor([len(t) + 1 for t in targets]).long(),
    )


def iterate_batches(
    pairs: Iterable[Pair],
    batch_size: int,
    *,
    seed: int | None = None,
    bucketed: bool = True,
) -> Iterator[Batch]:
    """Go once through the pairs, in batches; the last may hold fewer.

    ``seed`` shuffles the pairs; None keeps their order (of the batches too,
    if they are not bucketed). ``bucketed`` puts sentences of like length
    together, which leaves little padding; the batches still come in random
    order.

    >>> [len(b.source) for b in iterate_batches(sample_pairs(10), 4)]
    [4, 4, 2]
    """
    check_sizes(batch_size=batch_size)
    pairs = list(pairs)
    order = list(range(len(pairs)))
    rng = random.Random(seed)
    if seed is not None:
        rng.shuffle(order)
    if bucketed:
        order.sort(key=lambda i: len(pairs[i].source))
    starts = list(range(0, len(pairs), batch_size))
    if seed is not None:
        rng.shuffle(starts)
    for start in starts:
        yield make_batch([pairs[i] for i in order[start : start + batch_size]])
