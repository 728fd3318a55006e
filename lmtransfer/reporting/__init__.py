"""What runs came to, for people: tables, figures, comparisons, the page."""
