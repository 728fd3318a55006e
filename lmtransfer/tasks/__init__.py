"""Labeled tasks: reading and encoding examples, describing heads, and scoring answers."""
