"""The training loop and its parts; they do not depend on a specific model, objective or task."""
