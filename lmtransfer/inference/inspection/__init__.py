"""What ``inspect`` shows before training: rows as the model sees them, notes, cost."""
