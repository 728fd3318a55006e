"""Two runs, or two groups of runs, held against each other."""
