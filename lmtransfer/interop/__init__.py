"""Interoperability with other libraries: reading published checkpoints, and writing exports."""
