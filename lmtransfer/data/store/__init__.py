"""Corpora tokenised once, in memory-mapped files."""
