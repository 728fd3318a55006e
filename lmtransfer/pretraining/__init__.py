"""The work of ``pretrain``: assemble text, tokenizer, encoder and objectives; run several seeds; evaluate."""
