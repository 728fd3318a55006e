"""Readers for published file formats of labelled data."""
