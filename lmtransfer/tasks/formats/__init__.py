"""Readers of published file formats of downstream tasks: a file in, examples or rows and counts out."""
