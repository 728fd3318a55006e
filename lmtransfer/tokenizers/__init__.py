"""Tokenizers: the conversion of text to ids with offsets, and tokenizer training."""
