"""From a YAML config and the words of the command line to checked components."""
