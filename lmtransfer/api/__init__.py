"""The commands as functions, and a run with its model in memory; ``lmtransfer`` itself has their names."""
