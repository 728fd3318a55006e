"""Corruption: which tokens of a row are masked or predicted, and how."""
