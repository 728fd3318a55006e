"""Read published checkpoints, and write folders for other libraries."""
