"""Heads, which turn the encoder's vectors into predictions for a task."""
