"""The output of ``inspect`` before training: rows as the model sees them, notes, and the cost of training."""
