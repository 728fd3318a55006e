"""Sweeps (``-m``): what is planned, the outcome of each point, the lines and tables, signals."""
