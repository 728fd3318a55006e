"""Corpora: documents from files, from the hub, from this machine; their split."""
