"""What ``pretrain`` assembles and measures: text, tokenizer, encoder, objectives; its seeds and its evaluation."""
