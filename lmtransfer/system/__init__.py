"""The operating system: terminals, signals, atomic file writes, ranks and optional packages."""
