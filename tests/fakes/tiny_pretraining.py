"""The words of the smallest pretraining run on ``text.txt``, which the fixture ``text_world`` has."""

TINY = ["model=bert_tiny", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32", "model.max_length=32"]
TEXT = ["corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.2", "objective.max_length=16"]
SHORT = ["tokenizer.vocab_size=40", "tokenizer.allow_fewer=true", "train.batch_tokens=64"]
