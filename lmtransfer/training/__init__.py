"""The training loop and its parts, which do not depend on a specific model, objective or task."""
