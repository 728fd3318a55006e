"""Tasks without training: a pretraining run scores texts by their log-probabilities."""
