"""Token stores: corpora that are tokenised once, in memory-mapped files."""
