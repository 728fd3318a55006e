"""The tasks' official metrics."""
