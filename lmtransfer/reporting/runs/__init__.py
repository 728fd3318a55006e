"""Runs, read from their directories and compared with their controls."""
