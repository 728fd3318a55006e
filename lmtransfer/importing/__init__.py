"""A published model as a run directory."""
