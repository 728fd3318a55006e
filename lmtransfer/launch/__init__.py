"""How commands start: command lines, their configuration, single runs, sweeps, and jobs in their own processes."""
