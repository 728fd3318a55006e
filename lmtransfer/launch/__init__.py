"""Running a command: its words, its configuration, one run or the points of a sweep, or a call from Python."""
