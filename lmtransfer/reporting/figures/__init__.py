"""Figures, drawn from the rows of a report."""
