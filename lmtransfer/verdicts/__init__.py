"""Verdicts on differences: intervals, tests, power."""
