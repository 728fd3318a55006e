"""The Hugging Face hub: its answers in one line each, copies of its models, and uploads."""
