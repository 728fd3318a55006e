"""Demonstrations, lectures, benchmarks and the check on a GPU; none of it is installed."""
