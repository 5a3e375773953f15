"""Train translators: batches in, a log out; several runs side by side."""

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
from typing import Any, TypeVar

import torch
from torch import nn

from attention_lib._checks import (
    check_callable,
    check_items,
    check_number,
    check_sizes,
    check_type,
)
from attention_lib.course.corpus import PAD, Pair, iterate_batches

__all__ = [
    "TrainingLog",
    "run_parallel",
    "train",
    "train_run",
]


_T = TypeVar("_T")


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
