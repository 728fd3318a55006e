"""Interoperability: published checkpoints are read, and folders for other libraries are written."""
