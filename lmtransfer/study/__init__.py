"""Studies, which plan many runs, execute each run in its own process, and write a single table."""
