"""The HTML page of a report: plain view data from entries, and templates that show it."""
