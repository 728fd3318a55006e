"""Figures made from the rows of a report."""
