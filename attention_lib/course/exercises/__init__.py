"""Checkers for the exercises of the book: ``check(name, answer)``."""

from attention_lib.course.exercises._core import check

__all__ = ["check"]
