"""Tasks that ask for a tag of each word."""
