"""Tables and answers of a report, rendered as text."""
