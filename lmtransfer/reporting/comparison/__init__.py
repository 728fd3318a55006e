"""The comparison of two runs, or of two groups of runs."""
