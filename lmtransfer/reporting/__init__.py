"""Reporting of results: tables, figures, comparisons, pages."""
