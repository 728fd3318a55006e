"""Readers and writers of published tokenizer files."""
