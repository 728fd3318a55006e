"""Run directories: their files, their lock, who made them, and how they are opened and resumed."""
