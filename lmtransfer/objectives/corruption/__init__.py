"""Which tokens of a row are hidden or asked for, and how."""
