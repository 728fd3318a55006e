"""Readers of published file formats of labelled data."""
