"""Token stores: tokenized corpora in memory-mapped files."""
