"""Corpora: documents from files, from the hub and from installed libraries, and their splits."""
