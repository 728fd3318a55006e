"""Readers for published file formats of labeled data."""
