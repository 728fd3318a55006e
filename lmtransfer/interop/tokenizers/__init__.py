"""Published tokenizer files, read and written."""
