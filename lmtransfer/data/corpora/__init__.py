"""Corpora: documents from files, the hub or installed libraries, and their splits."""
