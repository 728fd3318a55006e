"""The commands: one short module each, which only connects other modules."""
