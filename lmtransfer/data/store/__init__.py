"""Token stores: tokenised corpora in memory-mapped files."""
