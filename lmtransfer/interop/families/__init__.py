"""One file for each published family: a table of its tensor names and settings and the matching names here."""
