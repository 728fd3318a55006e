"""Heads, which turn the encoder's vectors into answers to a task."""
