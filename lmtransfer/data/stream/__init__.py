"""Endless streams of optimizer steps, and evaluation batches, built from rows."""
