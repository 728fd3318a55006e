"""From files to batches: what a packed batch is, and how files are opened."""
