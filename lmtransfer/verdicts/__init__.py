"""Verdicts on differences: intervals, tests and power."""
