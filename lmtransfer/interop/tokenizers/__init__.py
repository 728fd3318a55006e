"""Read and write published tokenizer files."""
