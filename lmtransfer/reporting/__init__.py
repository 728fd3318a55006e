"""Reporting: tables, figures, comparisons, pages."""
