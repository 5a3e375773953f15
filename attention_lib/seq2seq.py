# Written by tools/export.py from 01_seq2seq.ipynb: edit there.
"""Encoder, decoder, training, decoding and evaluation of translators.

A translator is an encoder that turns a sentence into a :class:`Memory`, and a
:class:`Decoder` that turns the memory into words, one after the other. Later
chapters exchange one or the other and keep everything else.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_lib._checks import (
    check_callable,
    check_indices,
    check_items,
    check_lengths,
    check_number,
    check_sizes,
    check_type,
)
from attention_lib.corpus import (
    BOS,
    CHINESE,
    ENGLISH,
    EOS,
    PAD,
    Pair,
    iterate_batches,
    make_batch,
    pad,
    sample_pairs,
    tokenize_english,
)

__all__ = [
    "Decoder",
    "Encoder",
    "FixedVectorDecoder",
    "FixedVectorState",
    "Hypothesis",
    "Memory",
    "Scores",
    "Seq2Seq",
    "TrainingLog",
    "beam_search",
    "evaluate",
    "evaluate_by_clauses",
    "fixed_vector_model",
    "greedy_decode",
    "index_batch",
    "run_parallel",
    "score_translations",
    "train",
    "train_run",
    "translate",
]


_T = TypeVar("_T")


class Memory(NamedTuple):
    """What an encoder hands to a decoder.

    Args:
        states: One vector for each source word, (B, Tk, d); padded places
            hold zeros.
        mask: True at the words, False at the padding, (B, 1, Tk).
        final: One vector for the whole sentence, (B, h), or ``None`` from an
            encoder that makes none.

    Built in :ref:`section 1.4 <sec-encoder>`.
    """

    states: Float[Tensor, "B Tk d"]
    mask: Bool[Tensor, "B 1 Tk"]
    final: Float[Tensor, "B h"] | None


class Encoder(nn.Module):
    """Read a sentence with a GRU and keep the state after every word.

    Padding has no influence: a sentence gives the same states and the same
    final vector whatever stands beside it in the batch.

    Args:
        vocabulary_size: Number of source words.
        embedding_dim: Width of a word vector.
        hidden_dim: Width of the final vector.
        bidirectional: Read in both directions. Then the states are twice as
            wide, and the final vector is ``tanh`` of a linear map of the last
            states of both directions.

    References:
        Cho et al. (2014); Bahdanau et al. (2015), appendix A.2.1, for the
        bidirectional form.

    Example:
        >>> encoder = Encoder(10, 4, 6)
        >>> memory = encoder(torch.tensor([[5, 2], [2, 0]]),
        ...                  torch.tensor([2, 1]))
        >>> memory.states.shape, memory.final.shape
        (torch.Size([2, 2, 6]), torch.Size([2, 6]))

    Built in :ref:`section 1.4 <sec-encoder>`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        *,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(
            vocabulary_size=vocabulary_size,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
        )
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.gru = nn.GRU(
            embedding_dim,
            hidden_dim,
            batch_first=True,
            bidirectional=bidirectional,
        )
        self.bridge = (
            nn.Linear(2 * hidden_dim, hidden_dim) if bidirectional else None
        )
        self.state_dim = hidden_dim * (2 if bidirectional else 1)
        self.final_dim = hidden_dim

    def forward(
        self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]
    ) -> Memory:
        """Encode a padded batch.

        Args:
            source: Word numbers, (B, Tk).
            lengths: Number of words of each sentence, (B,), at least 1.
        """
        size = self.embedding.num_embeddings
        check_indices("source", source, size, "(B, Tk)")
        check_lengths("lengths", lengths, source.shape, least=1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(source),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        packed_states, last = self.gru(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            packed_states, batch_first=True, total_length=source.shape[1]
        )
        if self.bridge is None:
            final = last[0]
        else:
            final = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        positions = torch.arange(source.shape[1], device=source.device)
        mask = (positions < lengths.to(source.device)[:, None])[:, None, :]
        return Memory(states, mask, final)


def index_batch(tree: Any, index: Int[Tensor, " N"]) -> Any:
    """Pick rows of the batch axis in every tensor of a nested structure.

    Args:
        tree: A tensor with the batch first, ``None``, or a (named) tuple,
            list or dict of such.
        index: Row numbers, (N,); rows may repeat.

    Example:
        >>> state = (torch.tensor([[1.0], [2.0]]), None)
        >>> index_batch(state, torch.tensor([1, 1, 0]))[0].tolist()
        [[2.0], [2.0], [1.0]]

    Built in :ref:`section 1.5 <sec-decoder>`.
    """
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        check_indices("index", index, len(tree), "(N,)")
        return tree.index_select(0, index)
    if isinstance(tree, dict):
        return {key: index_batch(leaf, index) for key, leaf in tree.items()}
    check_type("tree", tree, (tuple, list), "made of tensors")
    leaves = [index_batch(leaf, index) for leaf in tree]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*leaves)
    return type(tree)(leaves)


class Decoder(nn.Module):
    """What training, decoding and evaluation ask of a decoder.

    A subclass defines :meth:`start` and :meth:`step`. If it can process all
    target positions at once, it also overrides :meth:`forward`, which must
    then give the same logits.

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    def start(self, memory: Memory) -> Any:
        """Make the state before the first word, memory included."""
        raise NotImplementedError

    def step(
        self, tokens: Int[Tensor, " B"], state: Any
    ) -> tuple[Float[Tensor, "B words"], Any]:
        """Read one word of each sentence and score the next.

        Args:
            tokens: The words just written, (B,); ``BOS`` at first.
            state: What :meth:`start` or the last call returned.

        Returns:
            The logits of the next word, (B, words), and the new state.
        """
        raise NotImplementedError

    def forward(
        self, target_input: Int[Tensor, "B Tq"], memory: Memory
    ) -> Float[Tensor, "B Tq words"]:
        """Score every next word, given the true words before it."""
        state = self.start(memory)
        logits = []
        for tokens in target_input.unbind(dim=1):
            scores, state = self.step(tokens, state)
            logits.append(scores)
        return torch.stack(logits, dim=1)

    def reorder(self, state: Any, index: Int[Tensor, " N"]) -> Any:
        """Pick rows of the batch from a state, for beam search."""
        return index_batch(state, index)


class FixedVectorState(NamedTuple):
    """State of a :class:`FixedVectorDecoder`.

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    hidden: Float[Tensor, "B h"]
    context: Float[Tensor, "B c"]


class FixedVectorDecoder(Decoder):
    """Write a sentence from one vector.

    The vector sets the first hidden state and stands beside every input word,
    so the decoder never has to carry it along.

    Args:
        vocabulary_size: Number of target words.
        embedding_dim: Width of a word vector.
        hidden_dim: Width of the hidden state.
        context_dim: Width of the encoder's final vector; ``hidden_dim`` if
            not given.

    References:
        Cho et al. (2014), "Learning phrase representations using RNN
        encoder-decoder for statistical machine translation".

    Example:
        >>> decoder = FixedVectorDecoder(9, 4, 6)
        >>> memory = Memory(torch.zeros(2, 3, 6),
        ...                 torch.ones(2, 1, 3, dtype=torch.bool),
        ...                 torch.zeros(2, 6))
        >>> decoder(torch.tensor([[1, 5], [1, 4]]), memory).shape
        torch.Size([2, 2, 9])

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        context_dim = hidden_dim if context_dim is None else context_dim
        check_sizes(
            vocabulary_size=vocabulary_size,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
            context_dim=context_dim,
        )
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.bridge = nn.Linear(context_dim, hidden_dim)
        self.gru = nn.GRU(
            embedding_dim + context_dim, hidden_dim, batch_first=True
        )
        self.output = nn.Linear(hidden_dim, vocabulary_size)

    def start(self, memory: Memory) -> FixedVectorState:
        """Make the first hidden state from the sentence vector."""
        check_type("memory", memory, Memory, "a Memory")
        if memory.final is None:
            raise ValueError("memory.final is None: a sentence vector needed")
        hidden = torch.tanh(self.bridge(memory.final))
        return FixedVectorState(hidden, memory.final)

    def step(
        self, tokens: Int[Tensor, " B"], state: FixedVectorState
    ) -> tuple[Float[Tensor, "B words"], FixedVectorState]:
        """Read one word of each sentence and score the next."""
        size = self.embedding.num_embeddings
        check_indices("tokens", tokens, size, "(B,)")
        logits, hidden = self._run(tokens[:, None], state)
        return logits[:, 0], FixedVectorState(hidden, state.context)

    def forward(
        self, target_input: Int[Tensor, "B Tq"], memory: Memory
    ) -> Float[Tensor, "B Tq words"]:
        """Score every next word, given the true words before it."""
        size = self.embedding.num_embeddings
        check_indices("target_input", target_input, size, "(B, Tq)")
        return self._run(target_input, self.start(memory))[0]

    def _run(
        self, tokens: Tensor, state: FixedVectorState
    ) -> tuple[Tensor, Tensor]:
        context = state.context[:, None].expand(-1, tokens.shape[1], -1)
        inputs = torch.cat([self.embedding(tokens), context], dim=-1)
        outputs, hidden = self.gru(inputs, state.hidden[None].contiguous())
        return self.output(outputs), hidden[0]


class Seq2Seq(nn.Module):
    """A translator: an encoder and a decoder.

    Args:
        encoder: Maps (source, lengths) to a :class:`Memory`.
        decoder: A :class:`Decoder`.

    Example:
        >>> model = Seq2Seq(Encoder(10, 4, 6), FixedVectorDecoder(9, 4, 6))
        >>> model(torch.tensor([[5, 2]]), torch.tensor([2]),
        ...       torch.tensor([[1, 5, 6]])).shape
        torch.Size([1, 3, 9])

    Built in :ref:`section 1.5 <sec-decoder>`.
    """

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
        super().__init__()
        check_callable("encoder", encoder)
        check_type("decoder", decoder, Decoder, "a Decoder")
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self,
        source: Int[Tensor, "B Tk"],
        lengths: Int[Tensor, " B"],
        target_input: Int[Tensor, "B Tq"],
    ) -> Float[Tensor, "B Tq words"]:
        """Score every next target word under teacher forcing."""
        logits: Tensor = self.decoder(
            target_input, self.encoder(source, lengths)
        )
        return logits


def fixed_vector_model(
    hidden_dim: int = 64, embedding_dim: int = 32
) -> Seq2Seq:
    """Build the translator of chapter 1 for the toy corpus.

    Example:
        >>> sum(p.numel() for p in fixed_vector_model(8, 4).parameters()) > 0
        True

    Built in :ref:`section 1.5 <sec-decoder>`.
    """
    return Seq2Seq(
        Encoder(len(ENGLISH), embedding_dim, hidden_dim),
        FixedVectorDecoder(len(CHINESE), embedding_dim, hidden_dim),
    )


def _progress(
    steps: Iterable[_T], total: int, show: bool, what: str
) -> Iterable[_T]:
    """Wrap an iterable in a progress bar, in Jupyter or on a terminal.

    The environment variable ``TQDM_DISABLE=1`` turns all bars off.
    """
    python = sys.modules.get("IPython")
    jupyter = python is not None and python.get_ipython() is not None
    watched = jupyter or sys.stderr.isatty()
    if not (show and watched) or os.environ.get("TQDM_DISABLE"):
        return steps
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return steps
    bar: Iterable[_T] = tqdm(steps, total=total, desc=what, leave=False)
    return bar


@dataclass
class TrainingLog:
    """What happened in a training run.

    Args:
        losses: The loss of each step, in nats per target word.
        seconds: How long the run took.

    Built in :ref:`section 1.6 <sec-training>`.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


def _endless_batches(
    pairs: Sequence[Pair], batch_size: int, seed: int
) -> Iterator[Any]:
    epoch = 0
    while True:
        yield from iterate_batches(
            pairs, batch_size, seed=seed * 1_000_003 + epoch
        )
        epoch += 1


def train(
    model: nn.Module,
    pairs: Sequence[Pair],
    *,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    warmup: int = 0,
    clip: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> TrainingLog:
    """Train a translator by teacher forcing, on a fixed budget.

    Adam minimises the mean cross-entropy of the next word. The learning rate
    grows linearly for ``warmup`` steps, then falls linearly to zero.

    Args:
        model: Called as ``model(source, lengths, target_input)``; returns
            logits.
        pairs: The training sentences.
        steps: Number of updates.
        batch_size: Sentences in each update, of like length.
        learning_rate: The largest learning rate.
        warmup: Steps until it is reached.
        clip: Largest norm of the whole gradient.
        seed: Decides the order of the batches. Not the model's start, which
            exists already: call ``torch.manual_seed`` before you build it.
        progress: Show a progress bar where there is someone to see it.

    Returns:
        The losses and the time.

    Built in :ref:`section 1.6 <sec-training>`.
    """
    check_type("model", model, nn.Module, "a module")
    pairs = check_items("pairs", pairs, Pair, "pairs")
    if not pairs:
        raise ValueError("pairs must hold at least one pair")
    check_sizes(0, steps=steps, warmup=warmup)
    check_sizes(batch_size=batch_size)
    check_number("learning_rate", learning_rate, low=0.0)
    check_number("clip", clip, low=0.0)
    began = time.perf_counter()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / (warmup + 1), (steps - step) / max(1, steps - warmup)
        ),
    )
    log = TrainingLog()
    batches = _endless_batches(pairs, batch_size, seed)
    for _ in _progress(range(steps), steps, progress, "training"):
        batch = next(batches)
        logits = model(batch.source, batch.source_lengths, batch.target_input)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1),
            batch.target_output.flatten(),
            ignore_index=PAD,
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        log.losses.append(loss.item())
    log.seconds = time.perf_counter() - began
    model.eval()
    return log


def train_run(
    build: Callable[[], nn.Module],
    pairs: Sequence[Pair],
    *,
    seed: int,
    **budget: Any,
) -> tuple[nn.Module, TrainingLog]:
    """Build a model from a seed and train it with the same seed.

    Args:
        build: Makes the model.
        pairs: The training sentences.
        seed: Decides the model's start and the order of the batches.
        **budget: Further arguments of :func:`train`.

    Returns:
        The trained model and its log.

    Built in :ref:`section 1.6 <sec-training>`.
    """
    check_callable("build", build)
    torch.manual_seed(seed)
    model = build()
    return model, train(model, pairs, seed=seed, **budget)


_jobs: Sequence[Callable[[], Any]] = ()


def _run_job(number: int) -> bytes:
    torch.set_num_threads(1)
    return pickle.dumps(_jobs[number]())


def run_parallel(
    jobs: Sequence[Callable[[], _T]],
    *,
    workers: int = 2,
    progress: bool = True,
) -> list[_T]:
    """Run independent jobs side by side, each on one thread.

    Small recurrent networks gain nothing from many threads, but two runs in
    two processes take half the time. Every job has to seed itself; then the
    results are the same whether the jobs run side by side or in turn.

    On Linux the processes are forks, so a job may be any callable, one from a
    notebook or a ``lambda`` too. Elsewhere, and beside a GPU, where a fork is
    not safe, the jobs run in turn.

    Args:
        jobs: Callables without arguments; their results must pickle.
        workers: How many run at a time.
        progress: Show a bar that counts finished jobs.

    Returns:
        The results, in the order of the jobs.

    Example:
        >>> run_parallel([lambda: 1, lambda: 2])
        [1, 2]

    Built in :ref:`section 1.6 <sec-training>`.
    """
    global _jobs
    what = "callables"
    jobs = check_items("jobs", jobs, Callable, what)  # type: ignore[arg-type]
    check_sizes(workers=workers)
    threads = torch.get_num_threads()
    forks = sys.platform == "linux" and not torch.cuda.is_available()
    if workers < 2 or len(jobs) < 2 or not forks:
        torch.set_num_threads(1)
        try:
            shown = _progress(jobs, len(jobs), progress, "runs")
            return [job() for job in shown]
        finally:
            torch.set_num_threads(threads)
    _jobs = jobs  # the forks inherit the jobs; only numbers are sent
    try:
        with (
            warnings.catch_warnings(),
            ProcessPoolExecutor(
                min(workers, len(jobs)),
                mp_context=multiprocessing.get_context("fork"),
            ) as pool,
        ):
            # Newer Pythons warn of every fork beside threads. The children
            # compute on one thread and take no lock of the parent's.
            warnings.simplefilter("ignore", DeprecationWarning)
            results = pool.map(_run_job, range(len(jobs)))
            shown_results = _progress(results, len(jobs), progress, "runs")
            return [pickle.loads(result) for result in shown_results]
    finally:
        _jobs = ()


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

    Built in :ref:`section 1.7 <sec-decoding>`.
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

    Built in :ref:`section 1.7 <sec-decoding>`.
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

    Built in :ref:`section 1.7 <sec-decoding>`.
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

    Built in :ref:`section 1.7 <sec-decoding>`.
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


class Scores(NamedTuple):
    """How good some translations are.

    Args:
        exact: Share of sentences in which every word and the end are right.
        token: Share of reference words (``EOS`` counts as one) that stand at
            the same place in the translation.
        sentences: Number of sentences.

    Built in :ref:`section 1.8 <sec-bottleneck>`.
    """

    exact: float
    token: float
    sentences: int


def score_translations(
    translations: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
) -> Scores:
    """Compare translations with references, word by word.

    Args:
        translations: Word numbers of each translation, with its ``EOS``.
        references: Word numbers of each reference, with its ``EOS``.

    Example:
        >>> score_translations([[5, 6, 2], [7, 8, 2]], [[5, 6, 2], [8, 7, 2]])
        Scores(exact=0.5, token=0.6666666666666666, sentences=2)

    Built in :ref:`section 1.8 <sec-bottleneck>`.
    """
    if len(translations) != len(references):
        raise ValueError(
            f"translations must be as many as references, got "
            f"{len(translations)} and {len(references)}"
        )
    exact = right = words = 0
    for translation, reference in zip(translations, references, strict=True):
        exact += list(translation) == list(reference)
        right += sum(
            a == b for a, b in zip(translation, reference, strict=False)
        )
        words += len(reference)
    count = len(references)
    return Scores(exact / max(1, count), right / max(1, words), count)


def evaluate(
    model: Seq2Seq,
    pairs: Sequence[Pair],
    *,
    batch_size: int = 256,
    beam_size: int = 1,
) -> Scores:
    """Translate sentences freely and compare with the references.

    The model reads its own words, not the true ones. A translation is cut
    where it is ten words longer than the longest reference of its batch.

    Args:
        model: The translator.
        pairs: The test sentences.
        batch_size: Sentences at a time; it has no influence on the result.
        beam_size: 1 decodes greedily.

    Returns:
        The share of exact sentences and of right words.

    Built in :ref:`section 1.8 <sec-bottleneck>`.
    """
    check_sizes(batch_size=batch_size, beam_size=beam_size)
    pairs = check_items("pairs", pairs, Pair, "pairs")
    ordered = sorted(pairs, key=lambda pair: len(pair.source))
    translations: list[list[int]] = []
    for start in range(0, len(ordered), batch_size):
        batch = make_batch(ordered[start : start + batch_size])
        limit = batch.target_output.shape[1] + 10
        if beam_size == 1:
            translations += greedy_decode(
                model, batch.source, batch.source_lengths, max_length=limit
            )
        else:
            found = beam_search(
                model,
                batch.source,
                batch.source_lengths,
                beam_size=beam_size,
                max_length=limit,
            )
            translations += [beams[0].tokens for beams in found]
    references = [[*CHINESE.encode(pair.target), EOS] for pair in ordered]
    return score_translations(translations, references)


def evaluate_by_clauses(
    model: Seq2Seq,
    *,
    clauses: Sequence[int] = (1, 2, 3, 4),
    count: int = 200,
    seed: int = 0,
) -> dict[int, Scores]:
    """Evaluate a translator on test sentences of each length.

    Args:
        model: The translator.
        clauses: The numbers of clauses.
        count: Test sentences of each.
        seed: Decides which sentences.

    Built in :ref:`section 1.8 <sec-bottleneck>`.
    """
    return {
        number: evaluate(
            model,
            sample_pairs(count, clauses=number, split="test", seed=seed),
        )
        for number in check_items("clauses", clauses, int, "whole numbers")
    }
