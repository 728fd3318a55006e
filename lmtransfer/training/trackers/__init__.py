"""Where the metrics of a run are recorded: always in ``metrics.jsonl``, and in any services that the user selects."""
