"""Studies: many runs planned, run in processes of their own, and put into one table."""
