"""Labeled tasks: reading examples, encoding them, describing their heads, and scoring answers."""
