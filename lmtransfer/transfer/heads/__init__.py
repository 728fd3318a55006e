"""Heads: they turn the encoder's vectors into answers to a task."""
