"""The commands, each a short module that only connects other modules."""
