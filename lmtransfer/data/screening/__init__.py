"""The screening of a corpus for near-duplicates among its documents and for evaluation texts in them."""
