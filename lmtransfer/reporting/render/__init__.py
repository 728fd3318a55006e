"""Showing a report as text on the terminal and as a page."""
