"""Configuration: from YAML files and command-line overrides to checked components."""
