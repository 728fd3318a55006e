"""Reading and writing of published tokenizer files."""
