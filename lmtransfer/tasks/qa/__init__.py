"""Tasks whose answers are spans of a passage."""
