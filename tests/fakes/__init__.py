"""Stand-ins for what tests need: texts, tokenizers, encoders, runs, published folders, task files."""
