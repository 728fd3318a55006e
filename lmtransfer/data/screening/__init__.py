"""Screening of a corpus: near-duplicates among its documents, and evaluation texts in them."""
