"""When a difference is one: intervals, tests, power."""
