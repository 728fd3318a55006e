"""Where the numbers of a run go: always ``metrics.jsonl``, and the services that the user chooses beside it."""
