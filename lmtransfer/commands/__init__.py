"""The commands: one short assembly each, and nothing private."""
