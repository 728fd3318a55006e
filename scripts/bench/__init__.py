"""Training speed of lmtransfer and of Hugging Face transformers; each side runs in its own process."""
