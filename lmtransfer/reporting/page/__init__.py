"""The HTML page of a report: view data derived from entries, and the templates that show it."""
