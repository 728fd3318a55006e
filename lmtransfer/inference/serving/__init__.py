"""``serve``: a local page, and the same as JSON, for trying a run on texts that the user types."""
