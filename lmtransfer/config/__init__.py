"""From YAML configs and command-line overrides to checked components."""
