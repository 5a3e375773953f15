"""Train translators: batches in, a log out; several runs side by side."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from attention_lib.course.corpus import PAD, Batch, Pair, iterate_batches

__all__ = [
    "TrainingLog",
    "run_parallel",
    "train",
    "train_run",
]


_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=nn.Module)


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
    """The loss of each step, in nats per target word, and the time taken."""

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


def _endless_batches(
    pairs: Sequence[Pair], batch_size: int, seed: int
) -> Iterator[Batch]:
    for epoch in itertools.count(seed * 1_000_003):
        yield from iterate_batches(pairs, batch_size, seed=epoch)


def train(
    model: nn.Module,
    pairs: Iterable[Pair],
    *,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    warmup: int = 0,
    clip: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> TrainingLog:
    """Train ``model(source, lengths, target_input)`` by teacher forcing.

    Adam minimises the mean cross-entropy of the next word, for ``steps``
    batches of sentences of like length. The learning rate grows linearly for
    ``warmup`` steps and falls linearly to zero; the gradient as a whole is
    clipped to the norm ``clip``. ``seed`` decides the order of the batches,
    not the model's start, which exists already. Where someone watches, a bar
    shows the ``progress``. The model is left in evaluation mode. Raises
    ValueError if there are no pairs.
    """
    pairs = list(pairs)
    if not pairs:
        raise ValueError("pairs must hold at least one pair")
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
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        log.losses.append(loss.item())
    log.seconds = time.perf_counter() - began
    model.eval()
    return log


def train_run(
    build: Callable[[], _Model],
    pairs: Iterable[Pair],
    *,
    seed: int,
    **budget: Any,
) -> tuple[_Model, TrainingLog]:
    """Build a model from a seed and train it with the same seed.

    ``budget`` holds further arguments of ``train``. Returns model and log.
    """
    torch.manual_seed(seed)
    model = build()
    return model, train(model, pairs, seed=seed, **budget)


_jobs: Sequence[Callable[[], Any]] = ()


def _run_job(number: int) -> bytes:
    torch.set_num_threads(1)
    return pickle.dumps(_jobs[number]())


def run_parallel(
    jobs: Iterable[Callable[[], _T]],
    *,
    workers: int = 2,
    progress: bool = True,
) -> list[_T]:
    """Run independent jobs side by side, each on one thread.

    Small recurrent networks gain nothing from many threads, but two runs in
    two processes take half the time. Every job has to seed itself; then the
    results are the same whether the jobs run side by side or in turn.

    On Linux the processes are forks, so a job may be any callable, one from a
    notebook or a ``lambda`` too, whose result pickles. Elsewhere, and beside
    a GPU, where a fork is not safe, the jobs run in turn. Returns the
    results, in the order of the jobs.

    >>> run_parallel([lambda: 1, lambda: 2])
    [1, 2]
    """
    global _jobs
    jobs = list(jobs)
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
