"""Compares two runs, or two groups of runs."""
