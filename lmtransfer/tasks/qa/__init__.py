"""Tasks that ask for a span of a passage."""
