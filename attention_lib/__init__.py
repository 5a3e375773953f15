"""Attention mechanisms, exactly as built in the chapters of the course."""

__version__ = "0.1.0"
