"""Reporting: tables, figures, comparisons and pages."""
