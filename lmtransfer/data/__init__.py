"""From files to batches: packed batches, file access, corpora, token stores and streams."""
