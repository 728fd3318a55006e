"""Tasks that predict a tag for each word."""
