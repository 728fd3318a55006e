"""Files of others, read within limits and held against a schema."""
