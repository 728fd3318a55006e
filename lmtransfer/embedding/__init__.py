"""``embed``: its input as windows of rows, the vectors of their texts, and its output."""
