"""Token embeddings from co-occurrence counts, which are factorised before the first step of training."""
