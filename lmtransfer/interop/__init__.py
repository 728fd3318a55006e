"""Published checkpoints in, folders for other libraries out."""
