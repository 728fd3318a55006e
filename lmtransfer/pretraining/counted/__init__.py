"""Token embeddings found by counting: which tokens occur together, factorised, before the first step of training."""
