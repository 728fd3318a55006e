"""Run directories: their files, who writes them, whose they are, opening and going on with them."""
