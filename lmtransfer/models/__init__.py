"""Encoders: one file a family."""
