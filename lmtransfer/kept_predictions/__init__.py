"""Predictions of a run, one for each scored example: kept in the run directory and read back for comparisons."""
