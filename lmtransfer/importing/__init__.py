"""A published model as a run directory, and the run that the user named: of a folder, or of a published model."""
