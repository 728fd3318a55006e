"""The one training loop and what it consists of; it knows no model, objective or task."""
