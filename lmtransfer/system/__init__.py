"""The operating system: terminals, signals, atomic file writes, ranks, optional packages."""
