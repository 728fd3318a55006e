"""Studies: they plan many runs, run each in its own process, and write one table."""
