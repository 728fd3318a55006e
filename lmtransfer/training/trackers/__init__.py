"""Trackers: the metrics of a run go to ``metrics.jsonl`` and to any services that the user selects."""
