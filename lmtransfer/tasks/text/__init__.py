"""Tasks about single texts and text pairs, with labels or scores."""
