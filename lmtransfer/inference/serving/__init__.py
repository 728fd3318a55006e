"""``serve``: a local page, and the same as JSON, to try one run on texts that are typed in."""
