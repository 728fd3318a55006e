"""Labelled tasks: examples, how they are encoded, what answers them, how answers are scored."""
