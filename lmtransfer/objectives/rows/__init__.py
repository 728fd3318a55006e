"""Training rows, and how they are cut from documents."""
