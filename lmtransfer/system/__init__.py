"""What the operating system gives and takes: terminals, signals, files that are whole, ranks, optional packages."""
