"""Heads: what answers a task from what was read of the encoder."""
