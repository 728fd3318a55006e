"""Token embeddings from co-occurrence counts, which are factorized before the first training step."""
