"""``serve``: a local page, and a JSON interface, for trying out a run on texts that the user types."""
