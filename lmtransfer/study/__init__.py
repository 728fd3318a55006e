"""Studies, which plan many runs, perform each run in its own process, and write one table."""
