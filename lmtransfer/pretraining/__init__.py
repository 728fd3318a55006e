"""The work of ``pretrain``: preparing the text, building the model, training the phases, and evaluating."""
