"""A report as text in the terminal and as a page."""
