"""Training speed of lmtransfer and of Hugging Face transformers, each side in a process of its own."""
