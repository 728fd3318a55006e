"""Run directories: their files, lock and provenance, and how they are opened and resumed."""
