"""Checkers for the exercises of the book: ``check(name, answer)``."""

from attention_lib.exercises._core import check

__all__ = ["check"]
