"""When a score may be called better than another, and of what: one rule, in one place, of numbers alone."""
