"""Reading files of others with limits, and checking them against a schema."""
