"""Tokenizers: text to ids with offsets, and training them."""
