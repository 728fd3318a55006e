"""Read files that other programs or people wrote, within limits, and check them against a schema."""
