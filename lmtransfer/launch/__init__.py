"""Starts commands: command lines, their configuration, single runs, sweeps, and jobs in separate processes."""
